"""What `GET /v1/timeline` might say: a small skip-join server, played iteration by iteration.

It keeps the rules that the page relies on (segments are contiguous and sum to the total, blocks stay within
their tiers, whoever waits is told who ran) and none of the finer ones.
"""

import copy
import random
from dataclasses import dataclass, field
from typing import Any

ITERATION_S = 0.03
PREFILL_S_A_TOKEN = 0.0004
BLOCK = 16
LEVELS = 5
START_S = 1_790_000_000.0
"""Unix time of the first arrival."""


@dataclass
class _Job:
    number: int
    arrived: float
    prompt: int
    output: int
    level: int = 0
    made: int = 0
    used_s: float = 0.0
    waited_s: float = 0.0
    place: str = "none"
    """none, device, host, out or in (moving)"""
    computed: bool = False
    dropped: bool = False
    first_token: float | None = None
    segments: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    demotions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    promotions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def name(self) -> str:
        return f"req-{self.number:04d}"

    @property
    def blocks(self) -> int:
        return -(-(self.prompt + self.made + 1) // BLOCK)

    def enter(self, state: str, at: float, displaced_by: list[str] | None, reason: str | None) -> None:
        """at: unix seconds. The state goes on if it is the one that the job is in."""
        since = at - self.arrived
        last = self.segments[-1] if self.segments else None
        runs = state in ("prefill", "decode", "recompute")
        if last and (last["state"], last["level"]) == (state, self.level):
            if runs:
                last["iterations"] += 1
            return
        if last:
            last["end_s"] = since
        self.segments.append(
            {
                "state": state,
                "level": None if state in ("gateway", "sending") else self.level,
                "start_s": since if last else 0.0,
                "end_s": since,
                "iterations": 1 if runs else None,
                "displaced_by": displaced_by,
                "reason": reason,
                "merged": 1,
            }
        )


class Play:
    """requests: how many; rate: arrivals a second; the rest: the server's size."""

    def __init__(
        self, requests: int, rate: float, batch: int, device: int, host: int, seed: int = 7, output: int = 90
    ) -> None:
        draw = random.Random(seed)
        at = START_S
        self.waiting: list[_Job] = []
        for number in range(requests):
            answer = 4 + int(draw.paretovariate(1.1) * output / 6) % output
            self.waiting.append(_Job(number, at, draw.randint(8, 220), answer))
            at += draw.expovariate(rate)
        self.batch, self.device, self.host = batch, device, host
        self.live: list[_Job] = []
        self.ended: list[_Job] = []
        self.samples: list[dict[str, Any]] = []
        self.now = START_S
        while self.waiting or self.live:
            self._iterate()

    def document(self) -> dict[str, Any]:
        jobs = sorted(self.ended, key=lambda job: job.arrived)
        return {
            "start_s": START_S,
            "end_s": self.now + 0.2,
            "requests": [_request(job) for job in jobs],
            "samples": self.samples,
            "limits": {"requests": 1000, "samples": 8192, "left_out": 0},
        }

    def _used(self, *places: str) -> int:
        return sum(job.blocks for job in self.live if job.place in places)

    def _iterate(self) -> None:
        while self.waiting and self.waiting[0].arrived <= self.now:
            job = self.waiting.pop(0)
            job.level = min(LEVELS - 1, job.prompt // 60)
            job.enter("gateway", job.arrived, None, None)
            self.live.append(job)
        if not self.live:
            self.now = self.waiting[0].arrived
            return
        for job in self.live:  # copies that the last iteration began are over
            job.place = {"out": "host", "in": "device"}.get(job.place, job.place)
        order = sorted(self.live, key=lambda job: (job.level, job.arrived))
        running, moved_in = self._choose(order)
        began_out = sum(job.blocks for job in self.live if job.place == "out")
        names = [job.name for job in running]
        seconds = ITERATION_S + sum(PREFILL_S_A_TOKEN * job.prompt for job in running if not job.computed)
        for job in self.live:
            self._note(job, job in running, names)
        sample = {
            "at_s": self.now, "pipeline": 0, "batch": len(running), "seconds": seconds,
            "tokens": sum(1 if job.computed else job.prompt for job in running),
            "waiting": len(self.live) - len(running), "device_used": self._used("device", "out", "in"),
            "device_total": self.device, "host_used": self._used("host", "out"), "host_total": self.host,
            "swap_out_blocks": began_out, "swap_in_blocks": moved_in,
        }  # fmt: skip
        self.samples.append(sample)
        self.now += seconds
        self._charge(running, seconds)

    def _choose(self, order: list[_Job]) -> tuple[list[_Job], int]:
        """Those who run, and the blocks that begin to come back from the host."""
        running: list[_Job] = []
        moved_in = 0
        for job in order:
            if len(running) == self.batch:
                break
            if job.place in ("device", "none") and self._fits(job, order, running):
                if job.place == "none":
                    job.place = "device"
                running.append(job)
            elif job.place == "host" and self._fits(job, order, running):
                job.place = "in"
                moved_in += job.blocks
        return running, moved_in

    def _fits(self, job: _Job, order: list[_Job], running: list[_Job]) -> bool:
        need = 1 if job.place == "device" else job.blocks
        for victim in reversed(order):
            if self._used("device", "out", "in") + need <= self.device:
                return True
            if victim.place == "device" and victim is not job and victim not in running and victim.computed:
                if self._used("host", "out") + victim.blocks <= self.host:
                    victim.place = "out"
                else:
                    victim.place, victim.computed, victim.dropped = "none", False, True
        return self._used("device", "out", "in") + need <= self.device

    def _note(self, job: _Job, runs: bool, names: list[str]) -> None:
        if runs:
            state = "decode" if job.computed else "recompute" if job.dropped else "prefill"
            job.enter(state, self.now, None, None)
        elif job.place == "none":
            reason = "its KV was dropped: host blocks are full" if job.dropped else "others are ahead of it"
            job.enter("queued", max(self.now, job.arrived + 0.004), names, reason)
        else:
            state = {"device": "preempted", "out": "swapping_out", "host": "on_host", "in": "swapping_in"}
            reason = f"{len(names)} of a batch of {self.batch} are ahead of it"
            job.enter(state[job.place], self.now, names, reason)

    def _charge(self, running: list[_Job], seconds: float) -> None:
        for job in list(self.live):
            job.waited_s += seconds
            if job not in running:
                if job.waited_s > 3.0 and job.level > 0:
                    job.level, job.waited_s, job.used_s = 0, 0.0, 0.0
                    job.promotions.append({"at_s": self.now - job.arrived, "level": 0})
                continue
            job.waited_s = 0.0
            job.computed = True
            job.made += 1
            job.used_s += seconds
            if job.first_token is None:
                job.first_token = self.now - job.arrived
            if job.used_s > 0.1 * 2**job.level and job.level < LEVELS - 1:
                job.level, job.used_s = job.level + 1, 0.0
                job.demotions.append({"at_s": self.now - job.arrived, "level": job.level})
            if job.made >= job.output:
                self.live.remove(job)
                self.ended.append(job)
                job.enter("sending", self.now, None, None)
                job.segments[-1]["end_s"] = job.segments[-1]["start_s"] + 0.003


def _request(job: _Job) -> dict[str, Any]:
    return {
        "request_id": job.name, "trace_id": f"{job.number + 1:032x}", "choice": 0,
        "job": f"{job.number:016x}", "pipeline": 0,
        "arrived_s": job.arrived, "total_s": job.segments[-1]["end_s"],
        "first_token_s": job.first_token, "finish_reason": "length", "prompt_tokens": job.prompt,
        "output_tokens": job.made, "segments": job.segments, "demotions": job.demotions,
        "promotions": job.promotions,
    }  # fmt: skip


def forty() -> dict[str, Any]:
    """40 requests that preempt each other, in pools too small for them."""
    return Play(40, rate=7.0, batch=4, device=48, host=80).document()


def thousand() -> dict[str, Any]:
    """25 such plays, one after the other."""
    document = forty()
    plays = [copy.deepcopy(document) for _ in range(25)]
    every = document["end_s"] - document["start_s"]
    for number, play in enumerate(plays):
        for request in play["requests"]:
            request["arrived_s"] += number * every
            request["request_id"] = _renamed(request["request_id"], number)
            request["job"] = f"{int(request['job'], 16) + number * 40:016x}"
            for segment in request["segments"]:
                if segment["displaced_by"]:
                    segment["displaced_by"] = [_renamed(name, number) for name in segment["displaced_by"]]
        for sample in play["samples"]:
            sample["at_s"] += number * every
    return document | {
        "end_s": START_S + len(plays) * every,
        "requests": [request for play in plays for request in play["requests"]],
        "samples": [sample for play in plays for sample in play["samples"]],
    }


def _renamed(name: str, play: int) -> str:
    return f"req-{int(name.removeprefix('req-')) + play * 40:04d}"
