import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.stage.layer_split import LayerCosts, layer_ranges
from shared.config import parse
from shared.errors import ConfigError


@given(st.integers(1, 60), st.integers(1, 8), st.floats(0, 100))
def test_every_layer_once_and_no_move_makes_the_slowest_stage_faster(
    layers: int, stages: int, head: float
) -> None:
    costs = LayerCosts(layers, 1.0, head)
    if stages > layers:
        with pytest.raises(ConfigError, match=r"parallel\.pipeline_stages"):
            layer_ranges(costs, stages)
        return
    ranges = layer_ranges(costs, stages)
    assert [layer for part in ranges for layer in part] == list(range(layers))
    work = [len(part) + head * (index == stages - 1) for index, part in enumerate(ranges)]
    slowest = max(work)
    for giver in range(stages):
        if work[giver] == slowest and len(ranges[giver]) > 1:
            others = [other for index, other in enumerate(work) if index != giver]
            assert all(other + 1 >= slowest for other in others)


def test_a_large_vocabulary_takes_layers_off_the_last_stage() -> None:
    """SmolLM2-135M: its output head weighs as much as eight of its layers."""
    costs = LayerCosts(30, 3_540_096, 49_152 * 576)
    assert [len(part) for part in layer_ranges(costs, 2)] == [19, 11]
    assert [len(part) for part in layer_ranges(LayerCosts(30, 3_540_096, 0), 2)] == [15, 15]


def test_a_given_split_is_taken_as_it_is() -> None:
    assert layer_ranges(LayerCosts(4, 1, 9), 2, (1, 3)) == [range(1), range(1, 4)]


@pytest.mark.parametrize("given_split", [(2, 3), (1, 1, 2)])
def test_a_split_that_does_not_fit_the_model_names_the_values(given_split: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        layer_ranges(LayerCosts(4, 1, 1), 2, given_split)
    text = str(caught.value)
    assert text.startswith("parallel.layer_split: ") and str(list(given_split)) in text
    assert "the model has 4" in text and "pipeline_stages is 2" in text


@pytest.mark.parametrize(
    ("split", "match"), [([3, 1, 2], r"\[3, 1, 2\] is for 3 stages.*is 2"), ([0, 4], "0"), ([4], "1 stages")]
)
def test_a_split_for_other_stages_is_refused_before_anything_starts(split: list[int], match: str) -> None:
    with pytest.raises(ConfigError, match=rf"parallel\.layer_split.*{match}"):
        parse({"parallel": {"pipeline_stages": 2, "layer_split": split}})
