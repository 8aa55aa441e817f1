"""How to reach the NATS servers of a configuration: addresses, credentials, certificates."""

import ssl
from pathlib import Path
from typing import Any

import nats.errors
from nats.aio.client import Client

from shared.config import NatsConfig
from shared.errors import ConfigError

DEFAULT_SERVER = "nats://127.0.0.1:4222"


class NatsClient(Client):
    """nats-py's client, except that TLS which was asked for is never done without: its own speaks plain text,
    password included, to whoever claims to have none.
    """

    def __init__(self, config: NatsConfig) -> None:
        super().__init__()
        self._tls_demanded = config.tls

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # Before CONNECT, which carries the credentials.
        if initial_connection and self._tls_demanded and not info.get("tls_required"):
            raise nats.errors.Error("nats.url asks for tls://, the server does not speak TLS")
        await super()._process_info(info, initial_connection)


def connection_options(config: NatsConfig) -> dict[str, Any]:
    """Arguments of `Client.connect` that say where and as whom.

    Raises ConfigError for a file that cannot be read.
    """
    options: dict[str, Any] = {
        "servers": config.servers or [DEFAULT_SERVER],
        "token": config.token,
        "user": config.user,
        "password": config.password,
    }
    if (file := _file("password_file", config.password_file)) is not None:
        options["password"] = file.read_text().strip()
    if (file := _file("credentials", config.credentials)) is not None:  # else nats-py tries for ever
        options["user_credentials"] = file
    if config.tls:
        options["tls"] = _tls_context(config)
    return options


def _tls_context(config: NatsConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=_file("tls_ca", config.tls_ca))
    except ssl.SSLError as error:
        raise ConfigError(f"nats.tls_ca: {config.tls_ca} holds no PEM certificates ({error})") from None
    certificate, key = _file("tls_cert", config.tls_cert), _file("tls_key", config.tls_key)
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key, password="")  # never asks on the terminal
        except ssl.SSLError as error:
            raise ConfigError(
                f"nats.tls_cert: {certificate} and nats.tls_key {key} are no certificate and its key, or the "
                f"key is encrypted ({error})"
            ) from None
    return context


def _file(key: str, path: str | None) -> Path | None:
    """Raises ConfigError if it cannot be read."""
    if path is None:
        return None
    file = Path(path).expanduser()
    try:
        file.open("rb").close()
    except OSError as error:
        raise ConfigError(f"nats.{key}: {path} cannot be read ({error.strerror})") from None
    return file
