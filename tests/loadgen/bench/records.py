"""Records and runs as tests need them."""

from typing import Any

import msgspec

from loadgen.bench.record import OK, End, Header, Record, Run
from loadgen.bench.settings import Benchmark, Target

BENCHMARK = Benchmark({"server": Target(url="http://server")})


def answered(index: int, scheduled: float, arrivals: list[float], **more: Any) -> Record:
    """A completed request with a token in each chunk."""
    fields: dict[str, Any] = {
        "sent": scheduled,
        "first": arrivals[0],
        "end": arrivals[-1],
        "output": len(arrivals),
        "counted_by": "usage",
        "asked_output": len(arrivals),
        "prompt": 10,
        "asked_prompt": 10,
    }
    return failed(index, scheduled, OK, **{"arrivals": arrivals, **fields, **more})


def failed(index: int, scheduled: float, outcome: str, **more: Any) -> Record:
    fields: dict[str, Any] = {
        "kind": "all",
        "tenant": "",
        "talk": index,
        "turn": 0,
        "asked_prompt": 10,
        "asked_output": 5,
    }
    return Record(index=index, scheduled=scheduled, outcome=outcome, **{**fields, **more})


def run(
    records: list[Record], target: str = "server", rate: float = 1.0, repeat: int = 0, **more: Any
) -> Run:
    benchmark = msgspec.structs.replace(BENCHMARK, targets={target: Target(url="http://server")})
    header = Header(target, rate, None, repeat, repeat, msgspec.to_builtins(benchmark), {}, {}, "2026-01-01")
    for name, value in more.items():
        setattr(header, name, value)
    return Run(header, records, End(10.0))
