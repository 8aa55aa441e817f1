"""Ports for servers that start a while after somebody was told the port, often in another process."""

import random
import socket

_PORTS = range(31_000, 32_768)
"""Above those of gateways (deploy/ingress.py), below those that the kernel gives out by itself: whoever binds
port 0 or connects in the meantime, as Ray's processes do by the dozen, is given none of them.
"""


def unused_ports(count: int) -> list[int]:
    """Different ones on which nobody listens on loopback now. Raises OSError if there are fewer."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            break
        if is_unused(port):
            found.append(port)
    if len(found) < count:
        raise OSError(f"{len(found)} of {count} ports are unused in {_PORTS.start} to {_PORTS.stop - 1}")
    return found


def unused_port() -> int:
    """One of them."""
    return unused_ports(1)[0]


def is_unused(port: int) -> bool:
    """Whether nobody has this port on loopback now."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
