"""What iterations and copies cost: DistServe's fits for OPT on A100s, or a profile of this machine."""

import msgspec

from shared.costmodel import BatchLoad, CostModel

GIB = 1 << 30
GB = 10**9


class ModelProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """cost: of an iteration through all stages
    kv_bytes: of one token, all layers
    device_tokens: room for KV on the devices, the same on every stage
    host_bytes: room for KV in host memory, all stages
    bandwidth: between device and host, one way, bytes/s, all ranks of one stage together
    stages: pipeline stages it was published with
    launch_s: fixed time of each contiguous copy, seconds
    stage_prefill_s: what a prefill costs each stage beyond its share, seconds per stage of the pipeline
    """

    name: str
    cost: CostModel
    kv_bytes: int
    device_tokens: int
    host_bytes: int
    bandwidth: float
    stages: int = 1
    launch_s: float = 10e-6
    stage_prefill_s: float = 1e-3

    def stage_seconds(self, load: BatchLoad, stages: int) -> float:
        """Compute time of one iteration on one of `stages` stages, seconds."""
        seconds = self.cost.seconds(load) / stages
        if stages > 1 and load.prefill_tokens:
            seconds += stages * self.stage_prefill_s
        return seconds

    def copy_seconds(self, moves: int, tokens: int, stages: int) -> float:
        """Time of one transfer of `tokens` tokens in `moves` contiguous copies on one stage, seconds.

        The layout puts the block first, so a move is one copy for all layers of the stage.
        """
        return moves * self.launch_s + tokens * self.kv_bytes / stages / self.bandwidth

    def blocks(self, block_size: int) -> tuple[int, int]:
        """Device and host blocks."""
        return self.device_tokens // block_size, self.host_bytes // (self.kv_bytes * block_size)


LAUNCH_S = 10e-6
"""No figure is published: the usual cost of starting one asynchronous copy from the host."""

PCIE = 25e9
"""Bytes/s one way per GPU, PCIe 4 x16."""

CARD_BYTES = 0.9 * 40 * GIB
"""Of an A100-40G at the artifact's memory fraction."""


def _fit(prefill: tuple[float, float, float], decode: tuple[float, float, float]) -> CostModel:
    """From milliseconds, as published."""
    return CostModel(*(1e-3 * value for value in (*prefill, *decode)), samples=1)


def _opt(
    name: str, cost: CostModel, cards: int, parameters: float, kv_bytes: int, host_bytes: int, stages: int = 1
) -> ModelProfile:
    """Device room is what the weights (two bytes each) leave; 15.8 K tokens for OPT-13B on one card, as in
    the reference. Activations are not counted.
    """
    room = int((cards * CARD_BYTES - 2 * parameters) / kv_bytes)
    bandwidth = PCIE * cards / stages
    return ModelProfile(name, cost, kv_bytes, room, host_bytes, bandwidth, stages, LAUNCH_S)


_OPT_13B = (12.85e9, 819_200)
_OPT_66B = (65.7e9, 2_359_296)
_OPT_175B = (175e9, 4_718_592)
"""Parameters and KV bytes a token (4 · layers · hidden size)."""

HOST_13B = 56 * GB
"""The artifact's swap space for ShareGPT; 48 GB for Alpaca."""

HOST_LARGE = 576 * GB
"""Not stated for 66B and 175B in v3: one and two of v1's hosts have this much each."""

_66B_TP8 = _fit((25.49, 0.1066, 3.39e-6), (23.16, 2.27e-4, 0.0480))


def _scaled(cost: CostModel, factor: float) -> CostModel:
    prefill = (factor * cost.prefill_a, factor * cost.prefill_b, factor * cost.prefill_c)
    decode = (factor * cost.decode_a, factor * cost.decode_b, factor * cost.decode_c)
    return CostModel(*prefill, *decode, samples=1)


_175B = _scaled(_66B_TP8, 60 / 25.1)
"""No fit is published for 175B: that of 66B on eight cards, scaled so that a decode iteration of 16 jobs
takes the 60 ms per token of v3 (through both stages).
"""

_VLLM_13B = _fit((22.05, 0.1405, 8.08e-6), (23.48, 5.93e-4, 0.0607))
_VLLM_66B = _fit((42.97, 0.2129, 4.60e-5), (39.58, 6.95e-4, 0.1358))

_LLAMA_8B_A10 = ModelProfile(
    "llama-8b-a10", _fit((30.0, 0.24, 2e-6), (28.0, 2.2e-4, 0.1)), 131_072, 40_000, 60 * GB, PCIE, 1, LAUNCH_S
)
"""FastSwitch's smaller set-up, LLaMA-8B on an A10 with 60 GB of host memory. No fit is published: decode is
the card's 600 GB/s over 16 GB of weights and the KV, prefill half of its 125 TFLOPS.
"""

MODELS = {
    model.name: model
    for model in (
        _opt("opt-13b", _fit((18.10, 0.1019, 7.12e-6), (19.93, 6.27e-4, 0.0385)), 1, *_OPT_13B, HOST_13B),
        _opt("opt-13b-tp2", _fit((14.74, 0.0686, 2.45e-6), (13.29, 3.41e-4, 0.0630)), 2, *_OPT_13B, HOST_13B),
        _opt("opt-13b-tp4", _fit((12.06, 0.0381, 5.2e-7), (10.26, 1.88e-4, 0.0327)), 4, *_OPT_13B, HOST_13B),
        _opt("opt-13b-vllm", _VLLM_13B, 1, *_OPT_13B, HOST_13B),
        _opt("opt-66b", _fit((29.44, 0.1514, 8.32e-6), (30.76, 4.52e-4, 0.0633)), 4, *_OPT_66B, HOST_LARGE),
        _opt("opt-66b-tp8", _66B_TP8, 8, *_OPT_66B, HOST_LARGE),
        _opt("opt-66b-vllm", _VLLM_66B, 4, *_OPT_66B, HOST_LARGE),
        _opt("opt-175b", _175B, 16, *_OPT_175B, 2 * HOST_LARGE, stages=2),
        _LLAMA_8B_A10,
    )
}
"""The fits are DistServe's for A100-80G, the room for KV is that of the evaluation's 40 GB cards. The fit for
OPT-13B at batches of 95 and more is left out: all published runs are at 16.
"""
