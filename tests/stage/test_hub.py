"""Models by their id, with the hub's own client against a hub on loopback."""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from services.stage import checkpoint, hub
from shared.config import ModelConfig
from shared.errors import CheckpointError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"version": 1}',
    "model.safetensors": b"weights" * 100_000,
    "pytorch_model.bin": b"the same again",
    "original/consolidated.safetensors": b"and again",
}


class Hub(ThreadingHTTPServer):
    """Of one model, tiny/model. downloaded: files in order"""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.downloaded: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/tiny/model/tree/"):
            self._send(json.dumps([self._entry(name) for name in FILES]).encode())
        elif path.startswith("/api/models/tiny/model"):
            self._send(json.dumps({"id": "tiny/model", "sha": COMMIT, "siblings": []}).encode())
        else:
            name = path.removeprefix(f"/tiny/model/resolve/{COMMIT}/")
            if name not in FILES:
                self.send_error(404)
                return
            if self.command == "GET":
                self.server.downloaded.append(name)
            self._send(FILES[name])

    do_HEAD = do_GET

    def _entry(self, name: str) -> dict[str, object]:
        return {"type": "file", "path": name, "size": len(FILES[name]), "oid": _digest(FILES[name])}

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.send_header("content-type", "application/json")
        self.send_header("etag", f'"{_digest(body)}"')
        self.send_header("x-repo-commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _digest(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@pytest.fixture
def server() -> Iterator[Hub]:
    with Hub() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def resolve(url: str, home: Path, *, weights: bool = True) -> tuple[str, list[float]]:
    """The folder or the error, and progress; by a process of its own: the client reads its settings once."""
    code = f"""
import json
from services.stage import checkpoint
from shared.config import ModelConfig
from shared.errors import CheckpointError
seen = []
try:
    model = ModelConfig(path="tiny/model")
    result = str(checkpoint.resolve(model, lambda _, fraction: seen.append(fraction), weights={weights}))
except CheckpointError as error:
    result = str(error)
print(json.dumps([result, seen]))
"""
    environment = {"HF_ENDPOINT": url, "HF_HOME": str(home), "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    result, seen = json.loads(run.stdout)
    return result, seen


def test_a_model_is_downloaded_once_and_only_what_is_read(server: Hub, tmp_path: Path) -> None:
    folder, _ = resolve(server.url, tmp_path, weights=False)
    assert sorted(server.downloaded) == ["config.json", "tokenizer.json"]
    assert not (Path(folder) / "model.safetensors").exists()

    again, seen = resolve(server.url, tmp_path)
    assert again == folder
    assert server.downloaded[2:] == ["model.safetensors"]
    assert (Path(folder) / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert seen[0] == 0.0 and seen[-1] == 1.0 and seen == sorted(seen)

    server.shutdown()
    assert resolve("http://127.0.0.1:1", tmp_path) == (folder, [])


@pytest.mark.parametrize("reachable", [True, False])
def test_a_hub_that_does_not_give_it(server: Hub, tmp_path: Path, reachable: bool) -> None:
    url = f"{server.url}/elsewhere" if reachable else "http://127.0.0.1:1"
    error, _ = resolve(url, tmp_path)
    assert error.startswith("model.path: there is no folder tiny/model, and the Hugging Face hub does not")
    assert "local folder" in error


@pytest.mark.parametrize("path", ["/models/x", "~/x", "./x", "x", "a/b/c", "../x"])
def test_paths_are_not_taken_for_ids(path: str) -> None:
    assert not hub.is_id(path)


def test_a_folder_comes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny" / "model").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"tiny/model has no config\.json"):
        checkpoint.resolve(ModelConfig(path="tiny/model"), lambda text, fraction: None)
