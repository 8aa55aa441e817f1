"""The engine: one pipeline of stages under a virtual clock, driven by the scheduler and KV cores.

    arrival ─┐                     ┌─ stage 0 ─ … ─ stage P-1 ─> result ─┐
    copied ──┼─> plan ─> dispatch ─┤                                     ├─> plan …
    result ──┘                     └─ copies of each stage ─> copied ────┘

As in the live system, each stage starts a plan's copies when the plan arrives, computes plans in the order of
their arrival, and waits only for the swap-ins that the plan itself reads. What the live system does and this
does not: time on the bus and for planning (`overhead_s` stands for both), sampling and detokenising.
"""

import heapq
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import msgspec

from loadgen.simulate.copies import StageCopies
from loadgen.simulate.ledger import FullLedger, JobRecord, Ledger
from loadgen.simulate.models import ModelProfile
from loadgen.workload.requests import Request
from services.kvcache.core import KVCache
from services.scheduler.core import Scheduler
from shared.config import Config
from shared.errors import SkipjoinError
from shared.ids import JobId, TransferId
from shared.messages import Direction, Limits, PlanReply, Sampling, StepPlan, StepResult, Submit

TOKEN = 7
"""Every output token: no stop token is set, so jobs end by their length."""

INFINITY = float("inf")

_GREEDY = Sampling(temperature=0.0)


class Stalled(SkipjoinError):
    """Jobs wait, and nothing computes or moves: a defect of a core."""


class Outcome(msgspec.Struct):
    """What a run leaves behind.

    records: one per request, in the order of arrival; none if the ledger keeps none
    seconds: from time 0 to the last event; iterations: steps with jobs
    busy: compute seconds of one stage
    stalled: seconds that stages waited for swap-ins, summed over stages
    blocked: seconds that nothing computed because the blocks for the next step were still being freed
    swaps, swapped_tokens: transfers and the KV tokens in them, by direction; moves: contiguous copies
    """

    records: list[JobRecord]
    seconds: float = 0.0
    iterations: int = 0
    busy: float = 0.0
    computed_tokens: int = 0
    stalled: float = 0.0
    blocked: float = 0.0
    swaps: dict[Direction, int] = msgspec.field(default_factory=lambda: dict.fromkeys(Direction, 0))
    moves: int = 0
    swapped_tokens: dict[Direction, int] = msgspec.field(default_factory=lambda: dict.fromkeys(Direction, 0))


class _Flight(msgspec.Struct):
    """A step on its way. seconds: compute time of each stage; waited: stall of the stages so far"""

    step: StepPlan
    seconds: float
    waited: list[float]


class _Reached(NamedTuple):
    """A step comes to a stage; the one past the last stands for its result."""

    at: float
    order: int
    flight: _Flight
    stage: int


class _Copied(NamedTuple):
    """A stage has copied its share of a transfer."""

    at: float
    order: int
    transfer: TransferId
    stage: int


@cache
def _prompt(tokens: int) -> list[int]:
    """One list for all prompts of this length, whatever the number of pipelines: nobody changes it."""
    return [TOKEN] * tokens


class Pipeline:
    """`run` plays one workload. Several pipelines on one clock: each is told to `advance` to an arrival, one
    of them is given it by `submit`, and in the end each has to `finish`.

    overhead_s: seconds between a plan and its arrival at stage 0
    ledger: what is to be remembered of jobs; default: everything
    """

    def __init__(
        self, config: Config, model: ModelProfile, overhead_s: float = 0.0, ledger: Ledger | None = None
    ) -> None:
        self._model = model
        self._stages = config.parallel.pipeline_stages
        self._overhead_s = overhead_s
        self._block_size = config.kv.block_size
        self.ledger: Ledger = FullLedger() if ledger is None else ledger
        self.outcome = Outcome(self.ledger.records)
        capacity = config.kv.device_blocks * config.kv.block_size
        self.scheduler = Scheduler(config, self.ledger, Limits(max_model_len=capacity, capacity=capacity))
        self.scheduler.set_cost_model(model.cost)
        self.kv = KVCache(config.kv, copies=self._stages)
        self._copies = [StageCopies(model, self._stages, self._block_size) for _ in range(self._stages)]
        self._free_at = [0.0] * self._stages
        self._events: list[_Reached | _Copied] = []
        self._order = 0
        self._plan_due = INFINITY
        self._blocked_since: float | None = None

    def run(self, requests: Iterable[Request]) -> Outcome:
        """Until every request has ended. Requests are in the order of their arrival.

        Raises Stalled if a core leaves jobs waiting for nothing.
        """
        for request in requests:
            self.advance(request.arrival)
            self.submit(request)
        return self.finish()

    @property
    def next_event_at(self) -> float:
        """Seconds on the virtual clock; infinity when there is nothing to do."""
        return min(self._events[0].at, self._plan_due) if self._events else self._plan_due

    def advance(self, until: float) -> None:
        """Whatever happens before `until`, seconds; that instant itself is left open for arrivals."""
        events = self._events
        while (now := self.next_event_at) < until:
            # All that happens at one instant is known before the next plan is made.
            while events and events[0].at <= now:
                self._handle(heapq.heappop(events))
            self._plan_due = INFINITY
            self._plan(now)
            self.outcome.seconds = now

    def submit(self, request: Request, prompt: list[int] | None = None) -> JobId:
        """At its arrival, up to which the pipeline has been advanced.

        prompt: its tokens, if what it has in common with others may be reused
        """
        now = self._plan_due = request.arrival
        job_id = self.ledger.arrived(request)
        refused = self.scheduler.submit(
            Submit(
                job_id,
                "simulator",
                _prompt(request.prompt) if prompt is None else prompt,
                request.output,
                _GREEDY,
                priority=request.priority,
                tenant=request.tenant,
                predicted_output=request.output,
                cache_salt=None if prompt is None else "",
            ),
            None,
            now,
        )
        if refused is not None:
            self.ledger.refused(job_id, refused.reason)
        return job_id

    def finish(self) -> Outcome:
        """No more arrivals: until every job has ended.

        Raises Stalled if a core leaves jobs waiting for nothing.
        """
        self.advance(INFINITY)
        self._check_end()
        return self.outcome

    # ------------------------------------------------------------ events

    def _handle(self, event: _Reached | _Copied) -> None:
        if isinstance(event, _Copied):
            self._copies[event.stage].complete(event.transfer)
            if self.kv.transfer_done(event.transfer, event.stage, 0) is not None:
                self.scheduler.moved([event.transfer], event.at)
        elif event.stage < self._stages:
            if event.stage == 1:
                self.scheduler.passed(event.flight.step.step_id)
            self._reach(event.flight, event.stage, event.at)
        else:
            self._complete(event.flight, event.at)

    def _reach(self, flight: _Flight, stage: int, now: float) -> None:
        self._start_copies(flight.step, stage, now)
        step, copies = flight.step, self._copies[stage]
        ready = max(now, self._free_at[stage])
        begin = max([ready, *map(copies.done_at, step.waits)]) if step.waits else ready
        flight.waited[stage] = begin - ready
        self._free_at[stage] = begin + flight.seconds
        self._order += 1
        heapq.heappush(self._events, _Reached(self._free_at[stage], self._order, flight, stage + 1))

    def _start_copies(self, step: StepPlan, stage: int, now: float) -> None:
        for directive in step.directives:
            done = self._copies[stage].start(directive, now)
            self._order += 1
            heapq.heappush(self._events, _Copied(done, self._order, directive.transfer_id, stage))

    def _complete(self, flight: _Flight, now: float) -> None:
        step, stages = flight.step, self._stages
        stalled = sum(flight.waited)
        if stalled:
            self.outcome.stalled += stalled
            for job in step.jobs:
                self.ledger.stalled(job.job_id, stalled)
        drawn = [TOKEN for job in step.jobs if job.sampling is not None]
        result = StepResult(step.step_id, drawn, [flight.seconds] * stages, flight.waited)
        self.scheduler.complete(result, now)

    # ------------------------------------------------------------ planning

    def _plan(self, now: float) -> None:
        """As the scheduler's shell: until the pipeline is full or nothing more can run now."""
        while (request := self.scheduler.plan_request(now)) is not None:
            reply = self.kv.plan(request)
            step = self.scheduler.dispatch(reply, now)
            if reply.directives or reply.dropped:
                self._note_moves(reply)
            if step is not None:
                self._send(step, now)
            if not reply.calls_for_another:
                break
        if self._blocked_since is None and not self.scheduler.in_flight and self.scheduler.unfinished:
            if not self._events:
                raise Stalled(f"{self.scheduler.unfinished} jobs wait at {now} s and nothing runs or moves")
            self._blocked_since = now

    def _send(self, step: StepPlan, now: float) -> None:
        if not step.jobs:
            for stage in range(self._stages):  # it overtakes what the stages compute
                self._start_copies(step, stage, now + self._overhead_s)
            return
        if self._blocked_since is not None:
            self.outcome.blocked += now - self._blocked_since
            self._blocked_since = None
        load = step.load()
        self.outcome.iterations += 1
        self.outcome.computed_tokens += load.prefill_tokens + load.decode_jobs
        seconds = self._model.stage_seconds(load, self._stages)
        self.outcome.busy += seconds
        flight = _Flight(step, seconds, [0.0] * self._stages)
        if self._overhead_s:
            self._order += 1
            heapq.heappush(self._events, _Reached(now + self._overhead_s, self._order, flight, 0))
        else:
            self._reach(flight, 0, now)

    def _note_moves(self, reply: PlanReply) -> None:
        outcome = self.outcome
        for directive in reply.directives:
            self.ledger.swapped(directive.job_id)
            outcome.swaps[directive.direction] += 1
            outcome.moves += len(directive.moves)
            outcome.swapped_tokens[directive.direction] += directive.blocks * self._block_size
        for job_id in reply.dropped:
            self.ledger.recomputed(job_id)

    def _check_end(self) -> None:
        """Every job has ended and no block is lost. Raises Stalled or the core's IntegrityError."""
        open_jobs = self.ledger.open_jobs
        if open_jobs or not self.kv.idle:
            raise Stalled(f"{open_jobs} jobs never ended; KV idle: {self.kv.idle}")
        self.kv.check()
        for name, pool, cached in (
            ("device", self.kv.device, 0),
            ("host", self.kv.host, self.kv.cached_blocks),
        ):
            held = pool.total - pool.free - cached
            if held:
                raise Stalled(f"{name} tier: {held} blocks are still held by nobody's job")
