from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.stage import weights
from services.stage.model_slice import ModelSlice, load_config
from shared.errors import CheckpointError

from .models import CONFIGS, make_prompt, save_model
from .pipeline import Pipeline, make_config

Tiny = Callable[[str], tuple[Path, torch.nn.Module]]


def load(folder: Path, stages: int = 1, stage: int = 0) -> ModelSlice:
    part = ModelSlice(load_config(folder), stages, stage, torch.float32)
    weights.load(part, folder, torch.device("cpu"), lambda fraction: None)
    return part


@pytest.mark.parametrize("family", CONFIGS)
def test_stage_reads_only_what_it_computes(tiny: Tiny, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = tiny(family)
    read: list[str] = []
    original = weights._Tensors.read
    monkeypatch.setattr(
        weights._Tensors, "read", lambda self, name, shape: read.append(name) or original(self, name, shape)
    )
    per_stage: list[list[str]] = []
    for stage in range(3):
        read.clear()
        load(folder, 3, stage)
        per_stage.append(sorted(read))
    first, middle, last = per_stage
    assert any("embed_tokens" in name for name in first)
    assert not any("embed" in name or "lm_head" in name for name in middle + last if "lm_head" not in name)
    assert "lm_head.weight" in last
    assert not any("lm_head" in name for name in first + middle)
    numbers = [
        {int(n.split("layers.")[1].split(".")[0]) for n in names if "layers." in n} for names in per_stage
    ]
    assert numbers == [{0, 1}, {2}, {3}]


def test_progress_rises_to_one(tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    part = ModelSlice(load_config(folder), 1, 0, torch.float32)
    seen: list[float] = []
    weights.load(part, folder, torch.device("cpu"), seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_checkpoint_in_several_files(tmp_path: Path, tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    save_model(CONFIGS["llama"], tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    prompt = make_prompt(12, seed=1)
    outputs: list[list[int]] = []
    for each in (folder, tmp_path):
        with Pipeline(make_config(each), each) as pipeline:
            job = pipeline.new_job(prompt)
            pipeline.step([(job, 12)])
            pipeline.step([(job, 1)])
            outputs.append(job.output)
    assert outputs[0] == outputs[1]

    next(tmp_path.glob("*-00002-*")).unlink()
    with pytest.raises(CheckpointError, match="00002"):
        load(tmp_path)


@pytest.fixture
def editable(tmp_path: Path) -> Path:
    save_model(CONFIGS["llama"], tmp_path)
    return tmp_path / "model.safetensors"


def test_missing_tensor(editable: Path) -> None:
    tensors = load_file(editable)
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, editable)
    with pytest.raises(CheckpointError, match=r"layers\.2\.mlp\.up_proj\.weight is missing"):
        load(editable.parent)
    load(editable.parent, 4, 0)  # that stage does not need it


def test_unexpected_tensor(editable: Path) -> None:
    tensors = load_file(editable)
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)  # harmless, in old checkpoints
    save_file(tensors, editable)
    with pytest.raises(CheckpointError, match=r"1 tensors do not belong .* such as .*q_proj\.bias"):
        load(editable.parent)


def test_wrong_shape(editable: Path) -> None:
    tensors = load_file(editable)
    tensors["model.norm.weight"] = torch.zeros(31)
    save_file(tensors, editable)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has shape \[31\].* \[32\]"):
        load(editable.parent)


def test_file_that_is_no_checkpoint(editable: Path) -> None:
    editable.write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(editable.parent)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ('"model_type": "gpt2"', "model type 'gpt2' is not supported, only llama"),
        ('"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4}', "quantized"),
        (
            '"model_type": "llama", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}',
            "rope type 'dynamic'",
        ),
        ('"model_type": 3', "not usable"),
    ],
)
def test_models_that_would_compute_wrongly_are_refused(tmp_path: Path, change: str, match: str) -> None:
    (tmp_path / "config.json").write_text(f"{{{change}}}")
    with pytest.raises(CheckpointError, match=match):
        load_config(tmp_path)
