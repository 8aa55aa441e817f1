"""HTTPS by files, as clients that verify see it."""

import ssl
from pathlib import Path

import httpx
import pytest
import trustme

from deploy.tls import check_certificate
from loadgen.served import ServedApplication
from shared.config import GatewayConfig, parse
from shared.errors import ConfigError

MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def files(authority: trustme.CA, folder: Path) -> tuple[str, str]:
    made = authority.issue_cert("127.0.0.1")
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())
    return str(cert), str(key)


@pytest.mark.system
def test_https(authority: trustme.CA, tmp_path: Path) -> None:
    cert, key = files(authority, tmp_path)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 5, "temperature": 0, "stream": True}
    with ServedApplication(f"gateway.tls_cert={cert}", f"gateway.tls_key={key}") as served:
        with httpx.Client(base_url=served.url, verify=trusting, timeout=60) as http:
            streamed = http.post("/v1/completions", json=body, headers={"X-Request-Id": "mine"})
            assert streamed.status_code == 200 and streamed.text.endswith("data: [DONE]\n\n")
            assert set(streamed.headers.get_list("x-request-id")) == {"mine"}
        plain = served.url.replace("https", "http")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{plain}/health")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{served.url}/health")  # of an authority that nobody knows
        assert f"curl -N {served.url}" in "".join(served.output)
        assert served.stop() == 0 and served.survivors() == []


@pytest.mark.parametrize("name", ["tls_cert", "tls_key"])
def test_both_files_are_needed(name: str) -> None:
    other = {"tls_cert": "tls_key", "tls_key": "tls_cert"}[name]
    with pytest.raises(ConfigError, match=f"gateway.{other}: not set"):
        parse({"gateway": {name: "a.pem"}})


def test_files_that_cannot_be_used_are_named(authority: trustme.CA, tmp_path: Path) -> None:
    cert, key = files(authority, tmp_path)
    check_certificate(GatewayConfig(tls_cert=cert, tls_key=key))
    for wrong in ((key, key), (cert, cert), (cert, str(tmp_path / "gone"))):
        with pytest.raises(ConfigError, match=r"gateway\.tls_cert, gateway\.tls_key: .* cannot be used"):
            check_certificate(GatewayConfig(tls_cert=wrong[0], tls_key=wrong[1]))
