"""External servers: TLS, certificates, passwords, .creds files, several of them; all against the real one."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from shared.bus import Bus
from shared.config import NatsConfig
from shared.errors import BusClosed, ConfigError
from shared.messages import KVChanged
from shared.metrics import Registry
from shared.subjects import Subjects
from tests.nats_credentials import operator_mode
from tests.nats_servers import NatsServer, nats_server

LISTEN = 'listen: "127.0.0.1:-1"\n'
USER = "authorization { users: [{ user: skipjoin, password: p4ss }] }\n"


class Certificates:
    """An authority, and certificates that it signed, as PEM files. A server's is for the name localhost."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self.ca = folder / "ca.crt"
        self._authority.cert_pem.write_to_path(self.ca)
        self.cert, self.key = self.issue("localhost")

    def issue(self, name: str) -> tuple[Path, Path]:
        certificate = self._authority.issue_cert(name)
        cert, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        certificate.private_key_pem.write_to_path(key)
        for pem in certificate.cert_chain_pems:
            pem.write_to_path(cert, append=True)
        return cert, key

    def server(self, verify: bool = False) -> str:
        return (
            f'tls {{ cert_file: "{self.cert}", key_file: "{self.key}", ca_file: "{self.ca}", '
            f"verify: {str(verify).lower()} }}\n"
        )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def secured(tmp_path: Path, certificates: Certificates) -> Iterator[NatsServer]:
    with nats_server(tmp_path, LISTEN + certificates.server() + USER) as server:
        yield server


def url(server: NatsServer) -> str:
    return f"tls://localhost:{server.ports['client']}"


async def connect(config: NatsConfig, patience: float = 20.0) -> Bus:
    return await Bus.connect(config, Subjects("test"), "a", Registry(), patience)


async def speaks(config: NatsConfig) -> None:
    """A message goes through the server and comes back."""
    bus = await connect(config)
    inbox = await bus.subscribe("x")
    await bus.publish("x", KVChanged(1))
    assert (await inbox.next()).body == KVChanged(1)
    await bus.close()


async def test_tls_and_a_password_from_a_file(
    secured: NatsServer, certificates: Certificates, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("p4ss\n")
    await speaks(
        NatsConfig(url=url(secured), tls_ca=str(certificates.ca), user="skipjoin", password_file=str(secret))
    )


async def test_a_wrong_password_is_refused_at_once(secured: NatsServer, certificates: Certificates) -> None:
    config = NatsConfig(url=url(secured), tls_ca=str(certificates.ca), user="skipjoin", password="wrong")
    with pytest.raises(BusClosed, match="refused the credentials"):
        await connect(config)


async def test_a_server_with_a_certificate_of_another_authority_is_not_spoken_to(
    secured: NatsServer, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    stranger = Certificates(tmp_path / "other")
    config = NatsConfig(url=url(secured), tls_ca=str(stranger.ca), user="skipjoin", password="p4ss")
    with pytest.raises(BusClosed, match=r"tls://localhost.*no connection within 1 s.*verify failed"):
        await connect(config, patience=1)


async def test_a_server_by_a_name_that_its_certificate_lacks_is_not_spoken_to(
    secured: NatsServer, certificates: Certificates
) -> None:
    address = url(secured).replace("localhost", "127.0.0.1")
    config = NatsConfig(url=address, tls_ca=str(certificates.ca), user="skipjoin", password="p4ss")
    with pytest.raises(BusClosed, match=r"not valid for '127\.0\.0\.1'"):
        await connect(config, patience=1)


async def test_servers_that_ask_for_a_certificate(tmp_path: Path, certificates: Certificates) -> None:
    cert, key = certificates.issue("skipjoin")
    with nats_server(tmp_path, LISTEN + certificates.server(verify=True)) as server:
        named = NatsConfig(url=url(server), tls_ca=str(certificates.ca), tls_cert=str(cert), tls_key=str(key))
        await speaks(named)
        with pytest.raises(BusClosed, match="no connection within 1 s"):
            await connect(NatsConfig(url=url(server), tls_ca=str(certificates.ca)), patience=1)


async def test_no_password_goes_to_a_server_that_claims_to_have_no_tls() -> None:
    heard: list[bytes] = []
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"auth_required":true}\r\n'
        )
        await writer.drain()
        heard.append(await reader.read())  # until the client hangs up
        left.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = NatsConfig(url=f"tls://127.0.0.1:{port}", user="skipjoin", password="p4ss")
    with pytest.raises(BusClosed, match="does not speak TLS"):
        await connect(config, patience=1)
    await left.wait()
    server.close()
    assert not any(heard)


async def test_credentials_file(tmp_path: Path) -> None:
    settings, file = operator_mode(tmp_path)
    with nats_server(tmp_path, LISTEN + settings) as server:
        address = f"nats://127.0.0.1:{server.ports['client']}"
        await speaks(NatsConfig(url=address, credentials=str(file)))
        _, stranger = operator_mode(tmp_path)
        with pytest.raises(BusClosed, match="refused the credentials"):
            await connect(NatsConfig(url=address, credentials=str(stranger)))


async def test_the_next_server_is_used_when_one_is_gone(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: asyncio.Queue[Bus] = asyncio.Queue()

    async def note(bus: Bus) -> None:
        moved.put_nowait(bus)

    monkeypatch.setattr(Bus, "_on_reconnect", note)
    monkeypatch.setattr("nats.aio.client.shuffle", lambda servers: None)

    def settings(routes: str) -> str:
        cluster = f'cluster {{ name: c, listen: "127.0.0.1:-1", routes: [{routes}] }}\n'
        return LISTEN + certificates.server() + USER + cluster

    with nats_server(tmp_path, settings("")) as first:
        with nats_server(tmp_path, settings(f'"nats://127.0.0.1:{first.ports["route"]}"')) as second:
            addresses = f"{url(second)}, {url(first)}"
            config = NatsConfig(url=addresses, tls_ca=str(certificates.ca), user="skipjoin", password="p4ss")
            receiver = await connect(config)
            inbox = await receiver.subscribe("x")
        assert await asyncio.wait_for(moved.get(), 20) is receiver
        await receiver._client.flush(timeout=10)  # its subscription is known there, too
        sender = await connect(config)  # in spite of the server that is gone
        await sender.publish("x", KVChanged(2))
        assert (await inbox.next()).body == KVChanged(2)
        for bus in (sender, receiver):
            bus.check()
            await bus.close()


@pytest.mark.parametrize(
    ("key", "text"),
    [("tls_ca", None), ("tls_ca", ""), ("tls_cert", None), ("tls_key", "no key"), ("password_file", None),
     ("credentials", None)],
)  # fmt: skip
async def test_files_that_cannot_be_used_are_named(
    key: str, text: str | None, tmp_path: Path, certificates: Certificates
) -> None:
    path = tmp_path / "file"
    if text is not None:
        path.write_text(text)
    fields = {"tls_ca": str(certificates.ca), "tls_cert": str(certificates.cert)}
    fields |= {"tls_key": str(certificates.key), key: str(path)}
    with pytest.raises(ConfigError, match=rf"nats\.{key}.*{path}"):
        await connect(NatsConfig(url="tls://localhost:1", **fields))  # type: ignore[arg-type]
