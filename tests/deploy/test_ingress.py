"""Several instances on one machine must not share what one of them is reached by."""

import socket

import pytest

from deploy import ingress
from deploy.ingress import haproxy_environment


def gateway_ports() -> range:
    environment = haproxy_environment()
    first, last = (environment[f"RAY_SERVE_DIRECT_INGRESS_{which}_HTTP_PORT"] for which in ("MIN", "MAX"))
    return range(int(first), int(last))


def test_ports_of_a_running_instance_are_not_taken_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray binds them with SO_REUSEPORT: nobody would notice, but requests would go to either."""
    monkeypatch.setattr(ingress.random, "shuffle", lambda blocks: None)
    first = gateway_ports()
    with socket.socket() as gateway:
        gateway.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        gateway.bind(("0.0.0.0", first[0]))
        gateway.listen()
        second = gateway_ports()
    assert not set(first) & set(second)
    assert haproxy_environment()["RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"] != "8500"
    assert len(second) >= 100 and second.start > 1024 and second.stop <= 30_000
