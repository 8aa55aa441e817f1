"""`skipjoin simulate bench`: a file of `skipjoin compare`, played under the virtual clock.

The same requests at the same times as live, of the targets that are Skipjoin itself; capacity and the
iteration of a request that is alone are found out in the same way. The result files are those of
`skipjoin compare`, so that `skipjoin report` puts both side by side.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from deploy.options import DEFAULT_CONFIG
from loadgen.bench import measure
from loadgen.bench.plan import file_name, plan
from loadgen.bench.record import OK, End, Header, Record, RunFile
from loadgen.bench.schedule import LONE, Ask, Talk, all_at_once
from loadgen.bench.settings import Benchmark, Target, parse, read
from loadgen.report.command import show
from loadgen.simulate import profile
from loadgen.simulate.ledger import JobRecord
from loadgen.simulate.models import ModelProfile
from loadgen.simulate.output import write
from loadgen.simulate.pipeline import Pipeline
from loadgen.workload.requests import Request
from shared.config import Config, load_document, override
from shared.config import parse as parse_config
from shared.errors import ConfigError

SUFFIX = " (simulated)"
"""Of the targets' names, so that live results of the same file can stand beside them."""


def add(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], None]:
    parser.add_argument("benchmark", type=Path, metavar="FILE", help="in YAML (loadgen/configs)")
    parser.add_argument(
        "--model", required=True, help="a name, or what `skipjoin profile --json FILE.json` wrote"
    )
    parser.add_argument("--overhead", type=float, default=0.004, metavar="S", help="per iteration, seconds")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="of the result files")
    return _run


def _run(options: argparse.Namespace) -> None:
    """Raises ConfigError, RunError."""
    if options.overhead < 0:
        raise ConfigError(f"--overhead {options.overhead}: must not be negative")
    benchmark = parse(read(options.benchmark), str(options.benchmark))
    runs = Study(benchmark, profile.model(options.model), options.overhead, options.out).run()
    show([options.out])
    write(options.json, {"runs": runs})


class Study:
    """model: what iterations and copies cost; memory is the configuration's
    out: folder of the result files
    """

    def __init__(self, benchmark: Benchmark, model: ModelProfile, overhead_s: float, out: Path) -> None:
        self._benchmark, self._model, self._overhead_s, self._out = _own(benchmark), model, overhead_s, out
        self._configs = {name: _config(target) for name, target in self._benchmark.targets.items()}

    def run(self) -> list[dict[str, Any]]:
        """Every run, by repeat, rate and target. Returns their summaries."""
        capacity, lone_s = self._capacity()
        benchmark = self._benchmark
        runs: list[dict[str, Any]] = []
        for repeat in range(benchmark.repeats):
            for place in range(len(benchmark.points())):
                for name in self._configs:
                    header, talks = plan(benchmark, name, place, repeat, capacity, lone_s)
                    header.server = {"simulated": self._model.name, "overhead_s": self._overhead_s}
                    records = self._play(name, talks)
                    self._keep(file_name(name.removesuffix(SUFFIX), place, repeat), header, records)
                    figures = measure.summarise(records, benchmark.objective, lone_s)
                    runs.append(
                        {"target": name, "rate": header.rate, "load": header.load, "repeat": repeat}
                        | {"summary": figures}
                    )
        return runs

    def _capacity(self) -> tuple[float | None, float | None]:
        """Requests/s, and seconds of an iteration alone, where the benchmark asks for them.

        Raises ConfigError if the target takes no request of either kind.
        """
        wanted = self._benchmark.capacity
        if wanted is None:
            return None, None
        name = wanted.target or next(iter(self._configs))
        alone = self._taken(name, [LONE])[0]
        lone_s = measure.tpot(alone) or measure.per_token(alone)
        capacity = wanted.measured
        if capacity is None:
            capacity = measure.capacity(self._taken(name, all_at_once(self._benchmark, wanted.requests)))
        facts = f"{1e3 * lone_s:.1f} ms a token alone, capacity {capacity:.3g} requests/s"
        print(f"{name}: {facts}", file=sys.stderr)
        return capacity, lone_s

    def _taken(self, name: str, talks: Sequence[Talk]) -> list[Record]:
        records = self._play(name, talks)
        if not measure.completed(records):
            raise ConfigError(f"{name}: takes no request: {records[0].detail}")
        return records

    def _keep(self, name: str, header: Header, records: Sequence[Record]) -> None:
        with RunFile(self._out / name, header) as file:
            for record in records:
                file.add(record)
            file.finish(End(max(record.end or record.scheduled for record in records)))

    def _play(self, name: str, talks: Sequence[Talk]) -> list[Record]:
        asked = [(talk.at, talk.asks[0]) for talk in talks]  # there are no conversations
        requests = [Request(at, ask.prompt, ask.output, tenant=ask.tenant) for at, ask in asked]
        outcome = Pipeline(self._configs[name], self._model, self._overhead_s).run(requests)
        return [
            _record(number, at, ask, job)
            for number, ((at, ask), job) in enumerate(zip(asked, outcome.records, strict=True))
        ]


def _record(number: int, at: float, ask: Ask, job: JobRecord) -> Record:
    """As the client would have written it."""
    record = Record(ask.index, ask.kind, ask.tenant, number, 0, ask.prompt, ask.output, at)
    if job.refused is not None:
        record.outcome, record.detail = "refused", job.refused
        return record
    record.sent, record.outcome, record.counted_by = at, OK, "token_ids"
    record.prompt, record.output = job.prompt, len(job.token_times)
    record.arrivals, record.chunk_tokens = job.token_times, [1] * len(job.token_times)
    record.first, record.end = job.token_times[0], job.token_times[-1]
    return record


def _own(benchmark: Benchmark) -> Benchmark:
    """With the targets that can be simulated, under their names here. Raises ConfigError if there is none."""
    if benchmark.workload.conversations is not None:
        raise ConfigError("workload.conversations: `skipjoin simulate conversations` plays those")
    targets = {name + SUFFIX: target for name, target in benchmark.targets.items() if target.set is not None}
    if not targets:
        raise ConfigError("targets: none has `set`; a server at a url cannot be simulated")
    capacity = benchmark.capacity
    if capacity is not None and capacity.target is not None:
        if capacity.target + SUFFIX not in targets:
            raise ConfigError(f"capacity.target: {capacity.target!r} is at a url, it cannot be simulated")
        capacity = msgspec.structs.replace(capacity, target=capacity.target + SUFFIX)
    return msgspec.structs.replace(benchmark, targets=targets, capacity=capacity)


def _config(target: Target) -> Config:
    """As `skipjoin compare` starts it. Raises ConfigError."""
    return parse_config(override(load_document(DEFAULT_CONFIG)[0], list(target.set or ())))
