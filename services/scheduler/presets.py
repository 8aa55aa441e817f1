"""What differs between the versions of the FastServe paper and its authors' released code."""

import msgspec

from shared.config import SchedulerConfig


class MlfqSettings(msgspec.Struct, frozen=True):
    """quantum_s: of the first queue; None: the shortest iteration, as profiled
    ratio: quantum of a queue over that of the queue above
    levels: number of queues; the lowest is first come, first served
    starvation_s: a job that waited longer is promoted, seconds
    demotion_levels: queues that a job falls when its quantum is used up
    demote_to_cover: it falls at least to a queue whose quantum covers its next iteration
    promotion_keeps_used: a promoted job's used time stands, so that it falls again after one iteration
    enst_per_batch: the quanta ahead are divided by the batch size, since so many jobs run at once
    promotion_iterations: what a promoted job may use, in iterations
    promotion_share: of the places in the batches, what promoted jobs may take; under overload, when more
        have waited for starvation_s, the wait until promotion stretches to that. None: it never stretches
    """

    quantum_s: float | None = None
    ratio: float = 2.0
    levels: int = 16
    starvation_s: float = 0.3
    demotion_levels: int = 1
    demote_to_cover: bool = True
    promotion_keeps_used: bool = False
    enst_per_batch: bool = True
    promotion_iterations: int = 1
    promotion_share: float | None = None


PRESETS = {
    "skipjoin": MlfqSettings(promotion_iterations=16, promotion_share=0.1),
    "paper-v3": MlfqSettings(),
    "paper-v1": MlfqSettings(enst_per_batch=False),  # alpha comes "from the SLO": the same 0.3 s here
    "artifact": MlfqSettings(
        quantum_s=0.010, levels=32, starvation_s=3.0, demote_to_cover=False, promotion_keeps_used=True
    ),
}
"""Not taken over from the artifact: its order of returning jobs (it reverses a batch) and its scan for
starving jobs every 1000 iterations only."""


def settings(config: SchedulerConfig) -> MlfqSettings:
    """The preset, with what the configuration sets explicitly."""
    explicit = {
        "ratio": config.quantum_ratio,
        "levels": config.levels,
        "starvation_s": config.starvation_s,
        "demotion_levels": config.demotion_levels,
        "promotion_share": config.promotion_share,
    }
    changed = {name: value for name, value in explicit.items() if value is not None}
    return msgspec.structs.replace(PRESETS[config.preset], **changed)
