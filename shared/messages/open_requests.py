"""Between gateways: the requests that each of them has."""

from shared.ids import JobId
from shared.messages.base import Message, Part


class RequestView(Part, frozen=True):
    """A request as its gateway knows it.

    request_id: the client's name for it, which need not be unique; answer_id: ours, which is
    key: name of the API key that it came with
    created: when it arrived, seconds since 1970
    prompt_tokens, completion_tokens: of all its prompts, and of all answers so far
    job_ids: one per answer; empty where the unfinished are listed
    """

    request_id: str
    answer_id: str
    endpoint: str
    key: str | None
    created: int
    ended: bool
    prompt_tokens: int
    completion_tokens: int
    job_ids: list[JobId] = []


class AskRequests(Message, frozen=True):
    """To a gateway. Answered with Requests. name: a request or answer id; None: the unfinished ones"""

    name: str | None = None


class Requests(Message, frozen=True):
    """As many as are told of in one message, oldest first; left_out: how many more there are."""

    requests: list[RequestView]
    left_out: int = 0
