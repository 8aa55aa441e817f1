"""What one call of `KVCache.plan` has decided so far."""

from collections.abc import Iterator

from services.kvcache.jobs import JobKV
from shared.ids import JobId, TransferId
from shared.messages import Candidate, Directive, Grant, Occupancy, PlanReply, PlanRequest


class PlanInProgress:
    """owed: free or leaving blocks that belong to candidates which were blocked earlier in this plan
    seen: candidates already looked at; they are never victims of later ones
    arriving: candidates that could run, were their KV not still on its way in
    new_blocks: given to jobs that held none before
    victims: who may have to make room, as far as not looked at yet; None until somebody needs it
    """

    def __init__(self, request: PlanRequest) -> None:
        self.request = request
        self.step_id = request.step_id
        self.granted: list[Grant] = []
        self.directives: list[Directive] = []
        self.waits: list[TransferId] = []
        self.dropped: list[JobId] = []
        self.seen: set[JobId] = set()
        self.arriving: list[tuple[JobKV, Candidate]] = []
        self.tokens = 0
        self.owed = 0
        self.new_blocks = 0
        self.victims: Iterator[JobKV] | None = None

    @property
    def full(self) -> bool:
        return len(self.granted) == self.request.batch_limit

    @property
    def fills_in(self) -> bool:
        """The batch has its jobs, some on their way in: whoever runs in their place displaces nobody."""
        return len(self.granted) + len(self.arriving) >= self.request.batch_limit

    def share_of(self, wanted: int) -> int:
        """Of `wanted` tokens, those that a job may compute in this step; 0 if it has to wait for another.

        With chunked prefill it gets what is left of the budget when each job that may yet follow has got its
        one token. Without, a prompt over the whole budget goes beside decodes, but beside no other prompt: if
        it had to go alone, it would wait until nobody before it had a token to compute, with places in the
        batch and blocks free.
        """
        left = self.request.token_limit - self.tokens
        if wanted <= left:
            return wanted
        if self.request.chunked:
            return max(0, left - (self.request.batch_limit - len(self.granted) - 1))
        prefills = self.tokens > len(self.granted)
        return 0 if prefills or wanted == 1 else wanted

    def grant(self, job: JobKV, tokens: int) -> None:
        """The job computes `tokens` tokens in this step, once its KV is there."""
        if job.transfer is not None:
            self.waits.append(job.transfer)
        job.step, job.planned = self.step_id, job.tokens + tokens
        self.tokens += tokens
        self.granted.append(Grant(job.job_id, job.table, tokens, job.found))
        job.found = 0

    def start_over(self) -> None:
        """Nothing was granted so far, and there is more room now."""
        self.owed = 0
        self.seen.clear()
        self.victims = None

    def reply(self, free_blocks: int, occupancy: Occupancy) -> PlanReply:
        dropped = list(dict.fromkeys(self.dropped))
        arriving = [job.job_id for job, _ in self.arriving if job.step is None]
        return PlanReply(
            self.step_id,
            self.granted,
            self.directives,
            self.waits,
            dropped,
            free_blocks,
            arriving,
            occupancy,
        )
