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
from loadgen.bench.record import OK, End, Header, Record, Run, RunFile
from loadgen.bench.schedule import LONE, Talk, all_at_once, schedule
from loadgen.bench.settings import Benchmark, Point, Target, parse, read
from loadgen.report.command import show
from loadgen.simulate import profile
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
    study = Study(benchmark, profile.model(options.model), options.overhead, options.out)
    summaries = study.run()
    show([options.out])
    write(options.json, {"runs": summaries})


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
        runs: list[dict[str, Any]] = []
        for repeat in range(self._benchmark.repeats):
            for place, point in enumerate(self._benchmark.points()):
                for name in self._configs:
                    run = self._one(name, repeat, place, point, capacity, lone_s)
                    figures = measure.summarise(run.records, self._benchmark.objective, lone_s)
                    runs.append({"target": name, "load": point.rate, "repeat": repeat, "summary": figures})
        return runs

    def _capacity(self) -> tuple[float | None, float | None]:
        """Requests/s, and seconds of an iteration alone, where the benchmark asks for them."""
        wanted = self._benchmark.capacity
        if wanted is None:
            return None, None
        name = wanted.target or next(iter(self._configs))
        lone_s = measure.tpot(self._play(name, [LONE])[0])
        crowd = all_at_once(self._benchmark, wanted.requests)
        capacity = wanted.measured or measure.capacity(self._play(name, crowd))
        alone = f"{1e3 * (lone_s or 0.0):.1f} ms a token alone"
        print(f"{name}: {alone}, capacity {capacity:.3g} requests/s", file=sys.stderr)
        return capacity, lone_s

    def _one(
        self,
        name: str,
        repeat: int,
        place: int,
        point: Point,
        capacity: float | None,
        lone_s: float | None,
    ) -> Run:
        benchmark = self._benchmark
        rate, seed = point.rate * (capacity or 1.0), benchmark.seed + repeat
        header = Header(
            target=name,
            rate=None if benchmark.workload.trace is not None else rate,
            load=None if capacity is None else point.rate,
            repeat=repeat,
            seed=seed,
            benchmark=msgspec.to_builtins(benchmark),
            server={"simulated": self._model.name, "overhead_s": self._overhead_s},
            machine={},
            when="",
            capacity=capacity,
            lone_iteration_s=lone_s,
        )
        records = self._play(name, schedule(benchmark, point, rate, seed))
        end = End(max((record.end or record.scheduled for record in records), default=0.0))
        with RunFile(self._out / f"{name.removesuffix(SUFFIX)}-{place}-{repeat}.jsonl", header) as file:
            for record in records:
                file.add(record)
            file.finish(end)
        return Run(header, records, end)

    def _play(self, name: str, talks: Sequence[Talk]) -> list[Record]:
        requests = [
            Request(talk.at, ask.prompt, ask.output, tenant=ask.tenant) for talk in talks for ask in talk.asks
        ]
        outcome = Pipeline(self._configs[name], self._model, self._overhead_s).run(requests)
        records: list[Record] = []
        for number, (talk, job) in enumerate(zip(talks, outcome.records, strict=True)):
            ask = talk.asks[0]
            record = Record(ask.index, ask.kind, ask.tenant, number, 0, ask.prompt, ask.output, talk.at)
            if job.refused is not None:
                record.outcome, record.detail = "refused", job.refused
            else:
                record.sent, record.outcome, record.counted_by = talk.at, OK, "token_ids"
                record.prompt, record.output = job.prompt, len(job.token_times)
                record.arrivals, record.chunk_tokens = job.token_times, [1] * len(job.token_times)
                record.first, record.end = job.token_times[0], job.token_times[-1]
            records.append(record)
        return records


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
