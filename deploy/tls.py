"""TLS of the ingress, by files.

HAProxy's configuration in Ray Serve has no place for a certificate, and would serve without one: with a
certificate Ray Serve's own proxy, in Python, listens instead, which takes about 1 ms of CPU a streamed chunk.
"""

import ssl
from typing import Any

from shared.config import GatewayConfig
from shared.errors import ConfigError


def http_options(gateway: GatewayConfig) -> dict[str, Any]:
    """Of Ray Serve."""
    where = {"host": gateway.host, "port": gateway.port}
    if not gateway.tls:
        return where
    return where | {"ssl_certfile": gateway.tls_cert, "ssl_keyfile": gateway.tls_key}


def check_certificate(gateway: GatewayConfig) -> None:
    """Raises ConfigError now, instead of a proxy that does not start."""
    if gateway.tls_cert is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            gateway.tls_cert, gateway.tls_key, password=_no_password
        )
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            f"gateway.tls_cert, gateway.tls_key: {gateway.tls_cert} and {gateway.tls_key} "
            f"cannot be used: {error}"
        ) from None


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one that is not")


def unverified() -> ssl.SSLContext:
    """To ask one's own server whether it is ready: its name in the certificate is for others."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
