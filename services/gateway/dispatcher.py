"""Brings jobs to pipelines: the first time, and again when the one that had them is lost or shuts down.

place ──route──> assign ──Submit──> Accepted
            ^                 └──── not taken: the next best one; none left: NotReady
            └── stale: its scheduler was replaced, its pipeline does not serve, tokens are missing
"""

import asyncio
import logging

from services.gateway.jobs import OpenJob, OpenJobs
from services.gateway.pipelines import Pipelines, Server
from services.gateway.routing import Router
from shared.block_hashes import block_hashes, split
from shared.bus import Bus
from shared.clock import Clock
from shared.errors import BusError, InvalidRequest, NoResponder, NotReady, PayloadTooLarge
from shared.ids import JobId
from shared.messages import Abort, Accepted, Refused
from shared.metrics import Registry

log = logging.getLogger("skipjoin.gateway")

_SUBMIT_TIMEOUT_S = 5.0
_HASHED_HERE = 4096
"""Tokens of a prompt that are hashed in a millisecond; longer ones are given to a thread."""


class _NotTaken(NotReady):
    """For certain: whoever was asked does not have the job."""


class Dispatcher:
    """block_size: of the KV cache, if it keeps prefixes"""

    def __init__(
        self,
        bus: Bus,
        jobs: OpenJobs,
        pipelines: Pipelines,
        router: Router,
        registry: Registry,
        clock: Clock,
        block_size: int | None,
    ) -> None:
        self._bus = bus
        self._jobs = jobs
        self._pipelines = pipelines
        self._router = router
        self._clock = clock
        self._block_size = block_size
        self._placing_again = asyncio.Lock()
        self._resubmitted = registry.counter(
            "skipjoin_resubmitted_jobs", "Jobs handed to a scheduler again, with their tokens so far."
        )
        self._routed = registry.counter(
            "skipjoin_routed_jobs", "Jobs handed to each pipeline, resubmissions included.", ["to"]
        )

    @property
    def busy(self) -> bool:
        """Stale jobs are being placed."""
        return self._placing_again.locked()

    async def place(self, job: OpenJob) -> None:
        """Have a pipeline take the job, the best one first.

        Raises InvalidRequest if it is refused for good, NotReady if there is none that takes it now.
        """
        tried: set[int] = set()
        error = NotReady(self._pipelines.not_ready(self._clock.now()) or "no pipeline is ready")
        while among := [each for each in self._pipelines.serving(self._clock.now()) if each not in tried]:
            pipeline = await self._choose(job, among)
            await self._assign(job, pipeline)
            try:
                await self._submit(job, pipeline)
                return
            except NotReady as failure:
                error = failure
                tried.add(pipeline)
                job.held = job.held and not isinstance(failure, _NotTaken)
        if isinstance(error, _NotTaken) and job.accepted_by is None:
            # A first submission ends here; a resubmission is tried again at the next sign of life.
            self._jobs.refuse(job.job_id, "not taken")
        raise error

    async def place_stale(self) -> None:
        """Submit again what nobody runs, or not from where we are."""
        async with self._placing_again:
            for job in self._jobs.stale():
                if self._jobs.get(job.job_id) is not job or job.finish is not None:
                    continue  # it ended while others were placed
                try:
                    await self.place(job)
                except NotReady as error:
                    log.warning("resubmission waits: %s", error)
                    return
                except InvalidRequest as error:
                    log.error("job %d was refused by the new scheduler: %s", job.job_id, error)
                else:
                    self._resubmitted.inc()

    async def abort(self, job_id: JobId, pipeline: int) -> None:
        try:
            await self._bus.publish(self._bus.subjects.pipeline(pipeline).abort, Abort([job_id]))
        except BusError as error:
            log.error("job %d could not be aborted: %s", job_id, error)

    async def _choose(self, job: OpenJob, among: list[int]) -> int:
        if len(among) == 1 or self._stays(job, among):
            return job.pipeline if job.pipeline in among else among[0]
        tokens = job.submit.prompt + job.output
        left = job.submit.max_tokens - len(job.output)
        return self._router.route(among, len(tokens), left, await self._hashes(job, tokens))

    def _stays(self, job: OpenJob, among: list[int]) -> bool:
        """The scheduler that accepted it is there and may still have it."""
        accepted, server = job.accepted_by, self._pipelines.server(job.pipeline)
        if accepted is None or server is None or job.pipeline not in among:
            return False
        return (accepted.pipeline, accepted.instance) == (server.pipeline, server.instance)

    async def _hashes(self, job: OpenJob, tokens: list[int]) -> list[bytes]:
        salt = job.submit.cache_salt
        if self._block_size is None or salt is None:
            return []
        if len(tokens) <= _HASHED_HERE:
            return split(block_hashes(tokens[:-1], self._block_size, salt))
        return split(await asyncio.to_thread(block_hashes, tokens[:-1], self._block_size, salt))

    async def _assign(self, job: OpenJob, pipeline: int) -> None:
        """Whoever had it before is told to stop: if it is alive, it has the blocks to give back."""
        before, held = job.pipeline, job.held
        job.assign(pipeline)
        tokens, left = len(job.submit.prompt) + job.base, job.submit.max_tokens - job.base
        self._router.assigned(job.job_id, pipeline, tokens, left)
        if held and before != pipeline:
            await self.abort(job.job_id, before)

    async def _submit(self, job: OpenJob, pipeline: int) -> None:
        """Raises InvalidRequest or NotReady."""
        subject = self._bus.subjects.pipeline(pipeline).submit
        submission = job.submission(self._clock.now())
        try:
            answer = await self._bus.request(subject, submission, timeout=_SUBMIT_TIMEOUT_S, trace=job.trace)
        except PayloadTooLarge as error:
            self._jobs.refuse(job.job_id, str(error))
            raise InvalidRequest(str(error), code="request_too_large", status=413) from None
        except NoResponder:
            raise _NotTaken("the scheduler is not reachable") from None
        except BusError as error:  # perhaps taken all the same
            raise NotReady(f"the scheduler did not answer ({error})") from None
        match answer.body:
            case Accepted():
                server = Server(answer.epoch, answer.source, pipeline)
                if not self._jobs.accepted(job.job_id, server, self._pipelines.server(pipeline)):
                    await self.abort(job.job_id, pipeline)
                self._routed.labels(pipeline).inc()
            case Refused(retryable=False) as refused:
                self._jobs.refuse(job.job_id, refused.reason)
                raise InvalidRequest(refused.reason, param=refused.param)
            case Refused() as refused:
                raise _NotTaken(refused.reason)
            case other:
                raise NotReady(f"the scheduler answered {type(other).__name__}")
