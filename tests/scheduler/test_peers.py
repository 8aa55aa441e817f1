"""Who is there, who was restarted, who is gone."""

from services.scheduler.peers import Peers, Receivers
from shared.ids import JobId
from shared.messages import FinishReason, Hello, Limits
from tests.cores import Cores, create_config, create_submit


def create_hello(
    service: str, instance: str = "a", *, ready: bool = True, limits: Limits | None = None
) -> Hello:
    return Hello(service, instance, ready, limits=limits)


def test_peers_are_missing_until_ready_and_again_when_silent() -> None:
    peers = Peers(["kvcache", "stage0"], stale_after_s=5)
    assert peers.missing(0) == ["kvcache", "stage0"]
    peers.hear(create_hello("kvcache"), 0)
    peers.hear(create_hello("stage0", ready=False), 0)
    assert peers.missing(1) == ["stage0"]
    peers.hear(create_hello("stage0"), 2)
    assert peers.missing(5) == [] and peers.missing(6) == ["kvcache"]
    peers.forget("stage0")
    assert peers.missing(5) == ["stage0"]


def test_a_new_instance_is_a_restart_and_a_repeated_hello_or_a_stranger_is_not() -> None:
    peers = Peers(["stage0"], stale_after_s=5)
    assert not peers.hear(create_hello("stage0", "a"), 0)
    assert not peers.hear(create_hello("stage0", "a"), 1)
    assert not peers.hear(create_hello("gateway", "x"), 1)
    assert not peers.hear(create_hello("gateway", "y"), 1)
    assert peers.hear(create_hello("stage0", "b"), 2)


def test_the_tightest_limits_hold() -> None:
    peers = Peers(["stage0", "stage1"], stale_after_s=5)
    assert peers.limits() is None
    peers.hear(create_hello("stage0", limits=Limits(2048, 999)), 0)
    peers.hear(create_hello("stage1", limits=Limits(1024, 5000)), 0)
    assert peers.limits() == Limits(1024, 999)


def test_a_lost_receiver_is_named_once() -> None:
    receivers = Receivers(lost_after_s=15)
    receivers.hear(create_hello("gateway", "g1"), 0)
    receivers.hear(create_hello("gateway", "g2"), 10)
    receivers.hear(create_hello("stage0", "s"), 0)
    assert receivers.take_lost(14) == []
    assert receivers.take_lost(16) == ["g1"]
    assert receivers.take_lost(17) == []


def test_the_jobs_of_a_lost_receiver_end_and_those_of_others_go_on() -> None:
    cores = Cores(create_config())
    cores.submit(create_submit(1, max_tokens=50))
    other = create_submit(2, max_tokens=3)
    cores.scheduler.submit(type(other)(other.job_id, "g2", other.prompt, 3, other.sampling), None, 0.0)
    cores.plan()
    cores.scheduler.abort_receiver("gateway", 0.0)
    cores.run()
    assert cores.recorder.ends[JobId(1)][0] is FinishReason.ABORT
    assert cores.recorder.ends[JobId(2)][0] is FinishReason.LENGTH
