"""Which pipeline gets a request: the one with the least outstanding work, unless another holds its KV.

Pure, and the same for the gateway and for the simulator's fleet. Work is predicted seconds at full batches
(`CostModel.share`): prompts that are still to be computed, and the rest of each answer. Until it ends that is
the mean answer, or what max_tokens leaves of it: lengths have about no memory. (Counted down token by token,
jobs took 1 to 4 % longer in `skipjoin simulate scale --rate 100 --replicas 8`.)
"""

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence

from shared.block_hashes import split
from shared.costmodel import GUESS, CostModel
from shared.ids import JobId
from shared.messages import Outstanding

FIRST_MEAN = 128.0
"""Output tokens expected before any answer has ended."""
WORTH = 4.0
"""A pipeline that holds the KV of a whole prompt may be this many such requests behind the least loaded one;
one that holds a part of it, by as much less.
"""
MOST_PREFIXES = 1 << 16
"""Blocks remembered per pipeline, about 10 MiB; what was used longest ago is forgotten first."""
_LEARNING = 0.01
"""Least weight of one answer in the mean length; the first hundred count alike."""


class _Job:
    """left: output tokens that are expected to come; context: mean tokens while they are drawn"""

    __slots__ = ("context", "left", "load", "max_tokens", "prompt")

    def __init__(self, load: "_Load", prompt: int, max_tokens: int, left: float) -> None:
        self.load = load
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.left = left
        self.context = prompt + left / 2


class _Load:
    """Of one pipeline: sums over the jobs that were assigned to it, and what its scheduler says of others.

    prefill, squares: tokens of prompts to be computed, and their squares
    output, context: tokens to be drawn, and the sum of what each of them looks at
    others: seconds
    prefixes: chain hashes of the blocks that are likely kept there, used longest ago first
    turn: when it was given a job for the last time
    """

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self.jobs: set[JobId] = set()
        self.prefill = self.squares = self.output = self.context = 0.0
        self.others = 0.0
        self.cost: CostModel = GUESS
        self.prefixes: OrderedDict[bytes, None] = OrderedDict()
        self.turn = 0
        self._own: float | None = None

    @property
    def seconds(self) -> float:
        if self._own is None:
            self._own = self.seconds_of(self.prefill, self.squares, self.output, self.context)
        return self._own + self.others

    def seconds_of(self, prefill: float, squares: float, output: float, context: float) -> float:
        cost, batch = self.cost, self._batch
        decode = output * (cost.decode_a / batch + cost.decode_c) + context * cost.decode_b
        return prefill * cost.prefill_b + squares * cost.prefill_c + decode

    def set_cost(self, cost: CostModel) -> None:
        self.cost, self._own = cost, None

    def add_prompt(self, tokens: float, sign: int) -> None:
        self.prefill += sign * tokens
        self.squares += sign * tokens**2
        self._own = None

    def add_output(self, tokens: float, context: float) -> None:
        self.output += tokens
        self.context += tokens * context
        self._own = None

    def leave(self, job_id: JobId) -> None:
        self.jobs.discard(job_id)
        if not self.jobs:  # without the rounding of a million additions
            self.prefill = self.squares = self.output = self.context = 0.0
            self._own = None


class Router:
    """batch: jobs in one iteration of a pipeline"""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._loads: dict[int, _Load] = {}
        self._jobs: dict[JobId, _Job] = {}
        self._turn = 0
        self._answers = 1
        self.mean_output = FIRST_MEAN
        """Tokens, of the answers that have ended by themselves."""

    # ------------------------------------------------------------ the decision

    def route(self, among: Iterable[int], prompt: int, max_tokens: int, hashes: Sequence[bytes] = ()) -> int:
        """One of the pipelines `among`, of which there must be one. Equals take turns. Assigns nothing.

        prompt: tokens to compute; max_tokens: those that may still be drawn
        hashes: chain hashes of the full blocks of what it computes
        """
        expected = min(self.mean_output, float(max_tokens))

        def score(pipeline: int) -> tuple[float, int, int]:
            load = self._load(pipeline)
            found = _leading(hashes, load.prefixes) / len(hashes) if hashes else 0.0
            worth = WORTH * found * load.cost.share(prompt, expected, self._batch) if found else 0.0
            return (load.seconds - worth, load.turn, pipeline)

        return min(among, key=score)

    def seconds(self, pipeline: int) -> float:
        """Outstanding work of a pipeline, as far as is known here."""
        return self._load(pipeline).seconds

    # ------------------------------------------------------------ what it knows of jobs

    def assigned(self, job_id: JobId, pipeline: int, prompt: int, max_tokens: int) -> None:
        """A job goes to a pipeline, perhaps from another one.

        prompt: tokens to compute there; max_tokens: those that may still be drawn
        """
        self.withdrawn(job_id)
        load = self._load(pipeline)
        job = self._jobs[job_id] = _Job(load, prompt, max_tokens, min(self.mean_output, float(max_tokens)))
        load.jobs.add(job_id)
        load.add_prompt(prompt, 1)
        load.add_output(job.left, job.context)
        self._turn += 1
        load.turn = self._turn

    def progressed(self, job_id: JobId, written: int) -> None:
        """So many output tokens of a job have come since it was assigned; one that is not is none of ours."""
        job = self._jobs.get(job_id)
        if job is None:
            return
        if job.prompt:
            job.load.add_prompt(job.prompt, -1)
            job.prompt = 0
        if job.max_tokens - written < job.left:
            left = float(max(0, job.max_tokens - written))
            job.load.add_output(left - job.left, job.context)
            job.left = left

    def withdrawn(self, job_id: JobId) -> None:
        """A job has ended or is taken from its pipeline."""
        job = self._jobs.pop(job_id, None)
        if job is None:
            return
        if job.prompt:
            job.load.add_prompt(job.prompt, -1)
        job.load.add_output(-job.left, job.context)
        job.load.leave(job_id)

    def answered(self, job_id: JobId, output: int) -> None:
        """A job has ended by itself after so many output tokens."""
        self.withdrawn(job_id)
        self._answers += 1
        self.mean_output += max(1 / self._answers, _LEARNING) * (output - self.mean_output)

    # ------------------------------------------------------------ what pipelines tell

    def report(self, pipeline: int, cost: CostModel, others: Outstanding) -> None:
        """others: jobs there that were not assigned here"""
        load = self._load(pipeline)
        load.set_cost(cost)
        drawn = min(float(others.output), others.jobs * self.mean_output)
        jobs = max(1, others.jobs)
        load.others = load.seconds_of(
            others.prefill, others.prefill**2 / jobs, drawn, drawn * others.context / jobs
        )

    def kept(self, pipeline: int, prefix: bytes) -> None:
        """Blocks are kept there for whoever begins with them. prefix: packed chain hashes"""
        prefixes = self._load(pipeline).prefixes
        for chain_hash in reversed(split(prefix)):  # the beginning is forgotten last
            prefixes[chain_hash] = None
            prefixes.move_to_end(chain_hash)
        while len(prefixes) > MOST_PREFIXES:
            prefixes.popitem(last=False)

    def lost(self, pipeline: int) -> None:
        """It holds nothing any more."""
        self._load(pipeline).prefixes.clear()

    def forget(self, pipeline: int) -> None:
        """It is gone for good, and no job is assigned to it."""
        self._loads.pop(pipeline, None)

    def _load(self, pipeline: int) -> _Load:
        load = self._loads.get(pipeline)
        if load is None:
            load = self._loads[pipeline] = _Load(self._batch)
        return load


def _leading(hashes: Sequence[bytes], known: Container[bytes]) -> int:
    """How many of the first `hashes` are known."""
    for count, chain_hash in enumerate(hashes):
        if chain_hash not in known:
            return count
    return len(hashes)
