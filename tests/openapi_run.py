"""The long run of schemathesis, for releases: the real application, asked for whatever /openapi.json allows
and forbids.

    python -m tests.openapi_run --examples 500 --minutes 60
"""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
]
"""Not `positive_data_acceptance`: a schema cannot say that a prompt fits, or which fields exclude others."""

SMALL = {"model": {"max_model_len": 48}, "gateway": {"max_choices": 4}}
"""Thousands of answers are made: those without a maximum, and those of many choices, are kept short."""

ENDLESS = "/v1/board"
"""A stream without an end would be read for ever; tests/gateway/test_board.py checks it."""


SETTINGS = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 504]
"""
"""504 is the right answer to a `timeout` that is over."""


async def run(url: str, examples: int, *options: str, phases: str = "coverage,fuzzing") -> tuple[int, str]:
    """Exit status and report of schemathesis over the document at `url`; 0 is: nothing found."""
    program = Path(sys.executable).with_name("schemathesis")
    # In a folder of its own: it keeps what it found, and would begin the next run with it.
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "schemathesis.toml").write_text(SETTINGS)
        process = await asyncio.create_subprocess_exec(
            str(program), "run", url, "--checks", ",".join(CHECKS), "--max-examples", str(examples),
            "--phases", phases, "--no-color", "--warnings", "off", "--exclude-path", ENDLESS, *options,
            cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            report, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return process.returncode or 0, report.decode()


async def _run(examples: int, minutes: float, seed: int | None) -> int:
    from tests.application import Application

    options = ["--max-time", str(round(60 * minutes)), "--request-timeout", "300"]
    options += [] if seed is None else ["--seed", str(seed)]
    async with Application(**SMALL) as application:
        status, report = await run(f"{application.url}/openapi.json", examples, *options)
        sys.stdout.write(report)
        await application.settled()  # no job and no block is left behind
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=500, help="for each operation (default 500)")
    parser.add_argument("--minutes", type=float, default=60, help="at most (default 60)")
    parser.add_argument("--seed", type=int, help="repeats a run (default: a new one)")
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch starts its workers
    return asyncio.run(_run(options.examples, options.minutes, options.seed))


if __name__ == "__main__":
    sys.exit(main())
