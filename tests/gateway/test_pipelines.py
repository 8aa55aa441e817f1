"""What the gateway thinks of each pipeline, from what its scheduler says and for how long it has not."""

from services.gateway.pipelines import GONE_S, News, Pipelines, Server
from shared.ids import Epoch
from shared.messages import HELLO_STALE_S, LEAVING, Hello, Limits

LIMITS = Limits(64, 64)
A, B = Server(Epoch(50), "a", 0), Server(Epoch(10), "b", 1)


def hello(*, detail: str = "", limits: Limits | None = LIMITS) -> Hello:
    return Hello("scheduler", "x", not detail, detail, limits)


def two() -> Pipelines:
    pipelines = Pipelines(1, 0.0)
    assert pipelines.hear(hello(), A, 0.0) is News.REPLACED
    assert pipelines.hear(hello(limits=Limits(32, 99)), B, 0.0) is News.REPLACED
    return pipelines


def test_one_that_serves_is_enough() -> None:
    pipelines = two()
    assert pipelines.serving(1.0) == [0, 1] and pipelines.limits == Limits(32, 64)
    pipelines.hear(hello(detail="waiting for stage0"), A, 1.0)
    assert pipelines.serving(1.0) == [1] and pipelines.not_ready(1.0) == ""
    assert pipelines.serving(HELLO_STALE_S + 0.5) == [] != pipelines.serving(HELLO_STALE_S)
    reason = pipelines.not_ready(HELLO_STALE_S + 0.5)
    assert "pipeline 0: waiting for stage0" in reason and "pipeline 1: no sign of life" in reason


def test_of_one_pipeline_the_reason_is_its_own() -> None:
    pipelines = Pipelines(1, 0.0)
    assert pipelines.not_ready(0.0) == "the scheduler has not started yet"
    pipelines.hear(hello(detail="loading"), A, 0.0)
    assert pipelines.not_ready(0.0) == "loading"


def test_epochs_of_different_pipelines_are_never_compared() -> None:
    pipelines = two()
    assert not pipelines.superseded(Server(Epoch(1), "b", 1))
    assert not pipelines.superseded(Server(Epoch(11), "b2", 1)), "older than pipeline 0, newer than its own"
    assert pipelines.superseded(Server(Epoch(9), "b0", 1))
    assert pipelines.hear(hello(), Server(Epoch(9), "b0", 1), 1.0) is News.STALE
    assert pipelines.server(1) == B


def test_what_a_hello_tells() -> None:
    pipelines = two()
    assert pipelines.hear(hello(), A, 1.0) is News.NOTHING
    assert pipelines.hear(hello(), A._replace(epoch=Epoch(51)), 1.0) is News.NEW_EPOCH
    assert pipelines.hear(hello(), Server(Epoch(60), "a2", 0), 1.0) is News.REPLACED


def test_who_took_leave_is_soon_forgotten_and_who_is_silent_later_but_never_a_configured_one() -> None:
    pipelines = two()
    pipelines.hear(hello(detail=LEAVING), B, 0.0)
    pipelines.hear(hello(), Server(Epoch(5), "c", 2), 0.0)
    assert pipelines.take_gone(HELLO_STALE_S) == []
    assert pipelines.take_gone(HELLO_STALE_S + 1) == [1] and pipelines.members == [0, 2]
    assert pipelines.take_gone(GONE_S + 1) == [2] and pipelines.members == [0]
    assert "no sign of life" in pipelines.not_ready(GONE_S + 1)
