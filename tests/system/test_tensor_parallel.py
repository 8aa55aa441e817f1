"""Two stages of two ranks each as the application runs them: Ray actors beside the replica of their stage."""

import json
import os
import shutil
import signal
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig

from loadgen.served import ServedApplication
from services.stage import checkpoint
from shared.config import ModelConfig
from tests.stage.models import hf_generate, save_model

pytestmark = pytest.mark.system

PROMPT = "Once upon a time there was"
TOKENS = 400
KILL_AFTER = 20
"""Chunks of the answer."""
RANK = "ray::RankActor"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    """A random model that speaks the embedded model's vocabulary."""
    folder = tmp_path_factory.mktemp("tiny")
    embedded = checkpoint.resolve(ModelConfig(), lambda text, fraction: None)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(embedded / name, folder)
    shape = dict(num_hidden_layers=4, hidden_size=64, intermediate_size=96, max_position_embeddings=1024)
    config = LlamaConfig(vocab_size=49152, num_attention_heads=4, num_key_value_heads=2, **shape)
    return folder, save_model(config, folder)


def ranks(served: ServedApplication) -> set[int]:
    """Process ids of the ranks other than the stages' first."""
    return {pid for pid, command in served.processes().items() if command.startswith(RANK)}


def test_a_rank_is_killed_in_mid_answer(tiny: tuple[Path, torch.nn.Module]) -> None:
    folder, model = tiny
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = hf_generate(model, tokenizer.encode(PROMPT), TOKENS)
    body = {
        "model": folder.name, "prompt": PROMPT, "max_tokens": TOKENS,
        "temperature": 0, "ignore_eos": True, "stream": True,
    }  # fmt: skip
    with ServedApplication(
        f"model.path={folder}",
        "parallel.pipeline_stages=2",
        "parallel.tensor_parallel=2",
        "profiler.cache=false",
    ) as served:
        before = ranks(served)
        assert len(before) == 2
        pieces: list[str] = []
        with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=120) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    assert "error" not in chunk, chunk
                    pieces.append(chunk["choices"][0]["text"])
                    if len(pieces) == KILL_AFTER:
                        os.kill(min(before), signal.SIGKILL)
        assert "".join(pieces) == tokenizer.decode(expected, skip_special_tokens=True)

        metrics = httpx.get(f"{served.url}/metrics").text
        assert 'skipjoin_epochs_total{cause="restarted peer"} 1.0' in metrics
        for stage in range(2):
            assert f'skipjoin_stage_ranks{{stage="{stage}"}} 2.0' in metrics
        after = ranks(served)
        assert len(after) == 2 and len(after & before) == 1, "the other stage goes on"
        assert served.stop() == 0, "".join(served.output)
        assert served.survivors() == []
