"""PCIe between one stage's device and its host: one channel each way, first come, first served.

device ──out──> host     copies overlap computation, and each other across the two directions
device <──in─── host
"""

from loadgen.simulate.models import ModelProfile
from shared.ids import TransferId
from shared.messages import Direction, Directive


class StageCopies:
    """Times of the copies of one stage."""

    def __init__(self, model: ModelProfile, stages: int, block_size: int) -> None:
        self._model = model
        self._stages = stages
        self._block_size = block_size
        self._free_at = {Direction.OUT: 0.0, Direction.IN: 0.0}
        self._done_at: dict[TransferId, float] = {}
        self.busy = {Direction.OUT: 0.0, Direction.IN: 0.0}

    def start(self, directive: Directive, now: float) -> float:
        """Queue it; returns when it will be complete, seconds on the virtual clock."""
        tokens = directive.blocks * self._block_size
        seconds = self._model.copy_seconds(len(directive.moves), tokens, self._stages)
        done = max(now, self._free_at[directive.direction]) + seconds
        self._free_at[directive.direction] = done
        self.busy[directive.direction] += seconds
        self._done_at[directive.transfer_id] = done
        return done

    def complete(self, transfer_id: TransferId) -> None:
        del self._done_at[transfer_id]

    def done_at(self, transfer_id: TransferId) -> float:
        """When a transfer that steps wait for is complete; the past if it is already."""
        return self._done_at.get(transfer_id, 0.0)
