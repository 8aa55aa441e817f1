"""Ports of servers that start later."""

import socket
from pathlib import Path

import pytest

from shared import ports
from shared.config import Config
from shared.nats_server import with_embedded_address
from shared.ports import unused_port, unused_ports


def test_the_kernel_gives_none_of_them_to_others() -> None:
    """Between the choice and the server's start Ray opens ports and connections by the dozen."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    address = with_embedded_address(Config()).nats.url
    assert address is not None
    chosen = [*unused_ports(50), int(address.rsplit(":", 1)[1])]
    assert len(set(chosen[:50])) == 50
    assert not any(low <= port <= high for port in chosen)


def test_one_that_somebody_listens_on_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    first = unused_port()
    monkeypatch.setattr(ports, "_PORTS", range(first, first + 1))
    assert unused_port() == first
    with socket.create_server(("127.0.0.1", first)), pytest.raises(OSError, match="0 of 1 ports"):
        unused_port()
