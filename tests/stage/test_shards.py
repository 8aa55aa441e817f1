"""Who holds what: the arithmetic, and that the ranks' parts of a checkpoint are the whole of it."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from services.stage import weights
from services.stage.collectives import Alone
from services.stage.model_slice import ModelSlice, load_config
from services.stage.shards import check_heads, share
from shared.errors import CheckpointError, ConfigError

from .models import CONFIGS, VOCAB, save_model
from .pipeline import Pipeline, make_config

Tiny = Callable[[str], tuple[Path, torch.nn.Module]]


class RankOf(Alone):
    """One of several ranks that never computes."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks


@given(st.integers(0, 1000), st.integers(1, 40))
def test_shares_are_neighbours_of_almost_one_size(total: int, ranks: int) -> None:
    shares = [share(total, ranks, rank) for rank in range(ranks)]
    assert [index for part in shares for index in part] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert len(shares[0]) == max(map(len, shares)), "the padding of the vocabulary relies on it"


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "values"),
    [
        (9, 3, 2, "1 or 3"),
        (32, 8, 3, "1, 2, 4 or 8"),
        (40, 40, 16, "1, 2, 4, 5, 8, 10, 20 or 40"),
        (7, 1, 7, "1"),
    ],
)
def test_heads_that_do_not_come_out_even(heads: int, kv_heads: int, ranks: int, values: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_heads(heads, kv_heads, ranks)
    assert str(caught.value) == (
        f"parallel.tensor_parallel: {ranks} ranks cannot share the model's {heads} attention heads and "
        f"{kv_heads} KV heads evenly, set it to {values}"
    )
    for value in re.findall(r"\d+", values):
        check_heads(heads, kv_heads, int(value))


def test_a_stage_refuses_heads_that_do_not_come_out_even(tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    with pytest.raises(ConfigError, match=r"tensor_parallel: 4 ranks .* 4 attention heads and 2 KV heads"):
        Pipeline(make_config(folder, ranks=4), folder)


def load(folder: Path, rank: int, ranks: int, stages: int = 1, stage: int = 0) -> ModelSlice:
    part = ModelSlice(load_config(folder), stages, stage, torch.float32, collectives=RankOf(rank, ranks))
    weights.load(part, folder, torch.device("cpu"), lambda fraction: None)
    return part


@pytest.mark.parametrize("family", CONFIGS)
def test_the_parts_of_all_ranks_are_the_checkpoint(
    tiny: Tiny, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = tiny(family)
    ranks = 2
    read: dict[str, list[torch.Tensor]] = {}
    original = weights._Tensors.read

    def note(self: weights._Tensors, name: str, shape: torch.Size) -> torch.Tensor:
        tensor = original(self, name, shape)
        read.setdefault(name, []).append(tensor)
        return tensor

    monkeypatch.setattr(weights._Tensors, "read", note)
    parts = [load(folder, rank, ranks) for rank in range(ranks)]
    stored = load_file(folder / "model.safetensors")
    cut = {name for name in parts[0].shards.cuts if name in read}
    for name, tensors in read.items():
        whole = stored[parts[0].tied.get(name, name)]
        if name in cut:
            dim = parts[0].shards.cuts[name].dim
            torch.testing.assert_close(torch.cat(tensors, dim), whole, atol=0, rtol=0)
            assert max(map(torch.numel, tensors)) <= whole.numel() * (VOCAB // 2 + 1) / VOCAB
        else:
            assert all(torch.equal(tensor, whole) for tensor in tensors)
    linear = [name for name, tensor in stored.items() if tensor.ndim == 2 and "layers." in name]
    assert cut >= set(linear), "every matrix of a layer is shared out"
    assert any("embed_tokens" in name for name in cut) and "lm_head.weight" in cut
    assert parts[0].kv_heads == CONFIGS[family].num_attention_heads // 2 // (1 if "opt" in family else 2)


def test_a_part_of_a_tensor_of_the_wrong_shape_is_refused(tmp_path: Path) -> None:
    save_model(CONFIGS["llama"], tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.down_proj.weight"] = torch.zeros(32, 47)
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"down_proj.weight has shape \[32, 47\].* asks for \[32, 48\]"):
        load(tmp_path, 0, 2)


MEASURE = """
import json, re, sys
from pathlib import Path
import torch
from services.stage import weights
from services.stage.model_slice import ModelSlice, load_config
from tests.stage.test_shards import RankOf
folder, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
def memory():
    # Not getrusage: there a process begins with the peak of the one that started it.
    status = Path("/proc/self/status").read_text()
    return [int(re.search(rf"{name}:\\s+(\\d+) kB", status)[1]) * 1024 for name in ("VmHWM", "VmRSS")]
torch.set_num_threads(1)
weights.can_pack("cpu", torch.float32)
part = ModelSlice(load_config(folder), 1, 0, torch.float32, collectives=RankOf(rank, ranks))
size = 4 * sum(parameter.numel() for parameter in part.model.parameters())
before = memory()
if sys.argv[4] == "compiled":
    part.use_cpu_layers()
weights.load(part, folder, torch.device("cpu"), lambda fraction: None)
print(json.dumps([size, *(after - first for after, first in zip(memory(), before))]))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """640 MB in float32, of which embedding and head are 80 MB each."""
    folder = tmp_path_factory.mktemp("large")
    config = LlamaConfig(
        vocab_size=20_480, hidden_size=1024, intermediate_size=4096, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4,
    )  # fmt: skip
    save_model(config, folder)
    return folder


@pytest.mark.parametrize("layers", ["compiled", "original"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_memory_peak_while_loading(large: Path, ranks: int, layers: str) -> None:
    """At most 1.2 times what the rank keeps: neither whole tensors nor the pages of the file add up. And what
    was needed only to load is given back.
    """
    command = [sys.executable, "-c", MEASURE, str(large), str(ranks - 1), str(ranks), layers]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    size, peak, kept = json.loads(run.stdout)
    assert size > 100e6
    assert 0.9 * size < peak < 1.2 * size, f"{peak / size:.2f} times the slice of {size / 1e6:.0f} MB"
    assert kept < 1.05 * size, f"{kept / size:.2f} times the slice of {size / 1e6:.0f} MB"
