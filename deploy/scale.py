"""`skipjoin scale`: add and remove pipelines of an application that runs."""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from typing import Any

_EVERY_S = 0.5


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "scale",
        help="have so many pipelines behind the gateways",
        epilog="example: skipjoin scale 2 --url http://127.0.0.1:8000",
    )
    command.set_defaults(run=run)
    command.add_argument("replicas", type=int, metavar="N")
    command.add_argument("--url", default="http://127.0.0.1:8000", help="of a gateway (default: %(default)s)")
    command.add_argument("--key", help="an admin's API key")
    command.add_argument(
        "--timeout", type=float, default=600.0, help="seconds until all are there (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Returns 0 once as many pipelines serve and no others are left."""
    url = options.url.rstrip("/") + "/v1/pipelines"
    deadline = time.monotonic() + options.timeout
    try:
        _ask(url, options.key, {"replicas": options.replicas})
        shown: set[str] = set()
        while True:
            pipelines = _ask(url, options.key)["data"]
            for line in map(_line, pipelines):
                if line not in shown:
                    sys.stderr.write(line + "\n")
                    shown.add(line)
            serving = [each for each in pipelines if each["serving"]]
            if len(serving) == len(pipelines) == options.replicas:
                sys.stdout.write(f"{options.replicas} pipelines serve\n")
                return 0
            if time.monotonic() > deadline:
                sys.stderr.write(f"skipjoin: {len(serving)} pipelines serve after {options.timeout:g} s\n")
                return 1
            time.sleep(_EVERY_S)
    except urllib.error.HTTPError as error:
        sys.stderr.write(f"skipjoin: {_reason(error)}\n")
    except OSError as error:
        sys.stderr.write(f"skipjoin: --url {options.url}: {error}\n")
    return 1


def _ask(url: str, key: str | None, body: dict[str, Any] | None = None) -> Any:
    """Raises OSError, HTTPError among them."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as answer:
        return json.load(answer)


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {text[:200]}"


def _line(pipeline: dict[str, Any]) -> str:
    return f"  pipeline {pipeline['pipeline']:<3} {pipeline['reason'] or 'serves'}"
