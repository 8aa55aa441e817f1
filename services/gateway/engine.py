"""The port to whatever generates tokens: all that the HTTP side knows of the rest of the system."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from services.gateway.pipeline_view import PipelineView
from services.gateway.pipelines import PipelineState
from shared.costmodel import CostModel
from shared.ids import JobId
from shared.messages import Explanation, JobTokens, Limits, Requests, Submit, Timeline, Timelines


class Engine(Protocol):
    @property
    def instance(self) -> str:
        """Where tokens are to be sent: this gateway's name on the bus."""
        ...

    @property
    def limits(self) -> Limits | None:
        """What one request may ask for; None until that is known."""
        ...

    @property
    def ready(self) -> tuple[bool, str]:
        """Whether requests can be served now, and if not, why."""
        ...

    @property
    def pipelines(self) -> list[PipelineState]:
        """All pipelines of the application, those that cannot serve included."""
        ...

    @property
    def draining(self) -> bool:
        """The gateway shuts down: streams that never end by themselves must end now."""
        ...

    @property
    def cost(self) -> CostModel:
        """What iterations cost, as far as is known."""
        ...

    def generate(self, submit: Submit, trace: str | None) -> AsyncGenerator[JobTokens]:
        """Run a job. The first item has no tokens: it says that the job was accepted.

        Every further item has all tokens that came since the last one, in order, without a gap; the last one
        has `finish` STOP or LENGTH. Closing the generator earlier aborts the job: use it with `aclosing`.

        Raises InvalidRequest or NotReady before the first item, GenerationFailed after it, and InvalidRequest
        later too if the job's grammar cannot be followed any further.
        """
        ...

    async def explain(self, job_id: JobId) -> Explanation:
        """What the scheduler knows of a job of whichever gateway. Raises NotReady if it does not answer."""
        ...

    async def look(self) -> list[PipelineView]:
        """What all pipelines look like now, by number; those that do not answer too."""
        ...

    async def requests_elsewhere(self, name: str | None) -> list[Requests]:
        """What the other gateways that answer have under this request or answer id, or unfinished (None)."""
        ...

    async def abort(self, job_id: JobId) -> None:
        """End a job of another gateway, which learns of it."""
        ...

    async def timelines(self, job_ids: Sequence[JobId]) -> list[Timeline]:
        """Of those of these jobs that are unfinished, of whichever gateway, so far."""
        ...

    async def window(self, seconds: float) -> list[Timelines]:
        """What each scheduler that answers says of its unfinished jobs, and of its iterations in the last so
        many seconds.
        """
        ...

    async def metrics(self) -> str:
        """The whole application's metrics, in Prometheus' text format."""
        ...
