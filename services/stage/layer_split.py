"""Which layers each stage computes."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Estimated work of a decode step, in weights that are read: it is bound by memory, and a prefill, which
    is not, multiplies with the same weights once a token.

    layers: how many; layer: weights of each; head: of what follows the last one
    The embedding counts as nothing: it reads one row a token.
    """

    layers: int
    layer: float
    head: float


def layer_ranges(costs: LayerCosts, stages: int, given: Sequence[int] | None = None) -> list[range]:
    """The layers of each stage, in order: as `given`, or such that the slowest stage is as fast as can be.

    Raises ConfigError when there are more stages than layers, or `given` does not fit.
    """
    layers = costs.layers
    if given is not None:
        if len(given) != stages or sum(given) != layers:
            raise ConfigError(
                f"parallel.layer_split: {list(given)} gives {sum(given)} layers to {len(given)} stages, the "
                f"model has {layers} and parallel.pipeline_stages is {stages}"
            )
        return _ranges(given)
    if stages > layers:
        raise ConfigError(
            f"parallel.pipeline_stages: {stages} stages cannot share {layers} layers, use at most {layers}"
        )
    return _ranges(_balanced(costs, stages))


def _balanced(costs: LayerCosts, stages: int) -> list[int]:
    """One layer each, then every further one to the stage that has least with it; the earlier one in a tie.

    All layers cost the same, so this is the best there is.
    """
    counts = [1] * stages
    work = [costs.layer] * stages
    work[-1] += costs.head
    for _ in range(costs.layers - stages):
        least = min(range(stages), key=work.__getitem__)
        counts[least] += 1
        work[least] += costs.layer
    return counts


def _ranges(counts: Sequence[int]) -> list[range]:
    ends = [sum(counts[: index + 1]) for index in range(len(counts))]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
