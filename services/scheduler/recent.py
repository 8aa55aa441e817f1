"""Latencies of the last minute in bounded memory: what `board` and `top` show as now.

Pure. A job's tokens are what the scheduler sees; clients see them a message and a detokenisation later.
"""

import math
from collections import Counter, deque

from services.scheduler.job import Job
from shared.ids import JobId
from shared.messages import Latency

WINDOW_S = 60
_SHORTEST_S = 1e-4
_STEP = math.log(1.1)
"""Buckets are 10 % wide: a quantile is off by at most 5 %."""


class RecentLatency:
    """One histogram a second, for the last minute."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, Counter[int]]] = deque()

    def observe(self, seconds: float, now: float) -> None:
        second = int(now)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, Counter()))
            self._forget(now)
        self._seconds[-1][1][int(math.log(max(seconds, _SHORTEST_S) / _SHORTEST_S) / _STEP)] += 1

    def summary(self, now: float) -> Latency:
        self._forget(now)
        buckets: Counter[int] = Counter()
        for _, counts in self._seconds:
            buckets.update(counts)
        count = buckets.total()
        if not count:
            return Latency()
        return Latency(count, _quantile(buckets, 0.5 * count), _quantile(buckets, 0.95 * count))

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] <= now - WINDOW_S:
            self._seconds.popleft()


def _quantile(buckets: Counter[int], rank: float) -> float:
    """The middle of the bucket that holds the value of this rank."""
    below = 0
    for bucket in sorted(buckets):
        below += buckets[bucket]
        if below >= rank:
            return _SHORTEST_S * math.exp((bucket + 0.5) * _STEP)
    raise AssertionError("a rank is at most the count")


class RecentJobs:
    """tokens, ended: since the start; first_token: from arrival; between_tokens: of one job"""

    def __init__(self) -> None:
        self.tokens = 0
        self.ended = 0
        self.first_token = RecentLatency()
        self.between_tokens = RecentLatency()
        self._last: dict[JobId, float] = {}

    def token(self, job: Job, now: float) -> None:
        """It has one more."""
        self.tokens += 1
        last = self._last.get(job.job_id)
        if last is not None:
            self.between_tokens.observe(now - last, now)
        elif len(job.output) == 1:  # else another pipeline has drawn the first one
            self.first_token.observe(now - job.arrived, now)
        self._last[job.job_id] = now

    def end(self, job: Job) -> None:
        self.ended += 1
        self._last.pop(job.job_id, None)

    def waits(self, job: Job, now: float) -> float:
        """Seconds since its last token here or, without one, since it arrived."""
        return now - self._last.get(job.job_id, job.arrived)
