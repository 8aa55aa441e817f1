"""deploy/nats.conf, taken by the real server: for its syntax, and as the cluster of three that it is."""

import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from deploy.options import DEFAULT_CONFIG
from shared.bus import Bus
from shared.config import NatsConfig, load_document, parse
from shared.errors import BusClosed, BusTimeout, NoResponder
from shared.messages import KVChanged
from shared.metrics import Registry
from shared.nats_server import server_binary
from shared.ports import unused_ports
from shared.subjects import Subjects
from tests.nats_servers import nats_server

CONF = DEFAULT_CONFIG.with_name("nats.conf")
INSTALLED = "/etc/skipjoin/nats/"
PASSWORD = "p0123456789abcdef"


@pytest.fixture
def installed(tmp_path: Path) -> str:
    """The file with certificates that are there."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "tls.key")
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(tmp_path / "tls.crt", append=True)
    return CONF.read_text().replace(INSTALLED, f"{tmp_path}/")


def environment(number: int) -> dict[str, str]:
    return {"NATS_SERVER_NAME": f"nats-{number}", "NATS_PASSWORD": PASSWORD}


def test_the_server_takes_the_file(installed: str, tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(installed)
    tried = subprocess.run(
        [server_binary(), "-t", "-c", str(path)], capture_output=True, text=True, env=environment(0)
    )
    assert tried.returncode == 0, tried.stderr
    assert "is valid" in tried.stderr


def test_a_password_is_not_optional(installed: str, tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(installed)
    tried = subprocess.run(
        [server_binary(), "-t", "-c", str(path)], capture_output=True, text=True,
        env={"NATS_SERVER_NAME": "nats-0"},
    )  # fmt: skip
    assert tried.returncode != 0 and "NATS_PASSWORD" in tried.stderr


def test_it_agrees_with_the_configuration() -> None:
    args, _ = load_document(DEFAULT_CONFIG.with_name("cluster.yaml"))
    nats = parse(args).nats
    text = CONF.read_text()
    limit = re.search(r"^max_payload: (\d+)MB", text, re.MULTILINE)
    assert limit is not None and int(limit[1]) * 1024 * 1024 == NatsConfig().max_payload
    assert f"user: {nats.user} " in text and nats.tls_ca == f"{INSTALLED}ca.crt"
    hosts = re.findall(r"nats-route://([\w.-]+):6222", text)
    assert [f"tls://{host}:4222" for host in hosts] == nats.servers


def test_every_application_may_use_its_subjects() -> None:
    assert '"sj.v1.>"' in CONF.read_text() and Subjects("any").pipeline(0).submit.startswith("sj.v1.")


async def test_three_of_them_are_one_bus(installed: str, tmp_path: Path) -> None:
    routes = unused_ports(3)
    text = installed
    for number, port in enumerate(routes):
        text = text.replace(f"nats-{number}.nats:6222", f"127.0.0.1:{port}")
    text = text.replace("0.0.0.0:4222", "127.0.0.1:-1").replace("0.0.0.0:8222", "127.0.0.1:-1")
    (tmp_path / "password").write_text(PASSWORD)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                nats_server(tmp_path, text.replace("0.0.0.0:6222", f"127.0.0.1:{port}"), environment(number))
            )
            for number, port in enumerate(routes)
        ]
        urls = [f"tls://localhost:{server.ports['client']}" for server in servers]
        common = {"tls_ca": str(tmp_path / "ca.crt"), "user": "skipjoin"}
        secret = {"password_file": str(tmp_path / "password")}
        first, last = [
            await Bus.connect(
                NatsConfig(url=url, **common, **secret), Subjects("any").pipeline(0), "a", Registry()
            )
            for url in (urls[0], urls[2])
        ]
        answers = await first.subscribe(first.subjects.submit)
        inbox = await last.subscribe(last.subjects.abort)
        await _until_heard(first, inbox.subject)
        await _until_heard(last, answers.subject)
        await first.publish(inbox.subject, KVChanged(1))
        await last.publish(answers.subject, KVChanged(2))
        assert [(await inbox.next()).body for _ in range(2)] == [KVChanged(0), KVChanged(1)]
        assert [(await answers.next()).body for _ in range(2)] == [KVChanged(0), KVChanged(2)]
        with pytest.raises(BusClosed, match="refused the credentials"):
            await Bus.connect(NatsConfig(url=urls[1], **common), Subjects("any").pipeline(0), "a", Registry())
        for bus in (first, last):
            bus.check()
            await bus.close()


async def _until_heard(sender: Bus, subject: str) -> None:
    """The listener's interest has reached the sender's server: a request finds somebody who could answer."""
    while True:
        try:
            await sender.request(subject, KVChanged(0), timeout=0.2)
        except NoResponder:
            continue
        except BusTimeout:
            return
