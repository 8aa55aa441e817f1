"""What Hugging Face transformers generates greedily with the embedded model."""

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TIE = 1e-3
"""Log-probabilities closer than this may swap places: the order of additions differs with the batch."""

WORDS = ("river", "mountain", "number", "engine", "orchard", "winter", "signal", "harbour", "copper")


def make_prompt(index: int) -> str:
    """Prompts of different lengths and content, about 10 to 70 tokens."""
    return f"Story {index}. " + " ".join(
        WORDS[(index * 3 + i) % len(WORDS)] for i in range(4 + 4 * (index % 12))
    )


class Reference:
    """It computes for seconds: beside a running application call it in a thread, or life signs stop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._answers: dict[tuple[str, int, float], list[int]] = {}

    @cached_property
    def model(self) -> Any:
        torch.set_num_threads(1)
        return AutoModelForCausalLM.from_pretrained(self._folder, dtype=torch.float32).eval()

    def generate(self, prompt: str, tokens: int, repetition_penalty: float = 1.0) -> list[int]:
        """`tokens` greedy output tokens, end-of-text ignored."""
        asked = (prompt, tokens, repetition_penalty)
        if asked not in self._answers:
            ids = torch.tensor([self.tokenizer.encode(prompt)])
            output = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=tokens,
                eos_token_id=None,
                pad_token_id=0,
                repetition_penalty=repetition_penalty,
            )
            self._answers[asked] = output[0, ids.shape[1] :].tolist()
        return self._answers[asked]

    def assert_greedy(self, prompt: str, tokens: list[int]) -> None:
        """`tokens` are what `generate` gives; after a tie within rounding they need only be as probable."""
        expected = self.generate(prompt, len(tokens))
        if tokens == expected:
            return
        first = next(
            i for i, (ours, theirs) in enumerate(zip(tokens, expected, strict=True)) if ours != theirs
        )
        ids = self.tokenizer.encode(prompt)
        with torch.inference_mode():
            logits = self.model(torch.tensor([ids + tokens])).logits[0, len(ids) - 1 : -1]
        best = logits.log_softmax(-1).max(-1).values
        ours = logits.log_softmax(-1)[range(len(tokens)), tokens]
        worst = (best - ours).max().item()
        assert worst < TIE, (
            f"{prompt!r}: token {first} differs and is {worst:.4f} nats less probable\n"
            f"ours   {tokens}\nHF     {expected}"
        )
