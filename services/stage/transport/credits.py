"""How much may be on its way: whoever wants to send more waits here until something was acknowledged."""

import asyncio
from collections import OrderedDict

from shared.errors import ActivationLost
from shared.ids import StepId


class EpochOver(Exception):
    """What was about to be sent or awaited belongs to an epoch that is over; never leaves the transport."""


class Credits:
    """Activations of one hop that the next stage has not taken yet: at most `count`, and `size` bytes.

    One that is larger than `size` by itself goes alone. A lost acknowledgement is made up for by the next:
    taking a step means that all before it are taken.
    """

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._size = size
        self._open: OrderedDict[StepId, int] = OrderedDict()
        self._changed = asyncio.Event()
        self._epochs = 0

    @property
    def bytes(self) -> int:
        """On their way now."""
        return sum(self._open.values())

    async def take(self, step_id: StepId, size: int) -> None:
        """Returns when `size` more bytes may be sent, however long the next stage computes until then.

        Raises EpochOver if the epoch ends meanwhile.
        """
        epochs = self._epochs
        while self._open and (len(self._open) >= self._count or self.bytes + size > self._size):
            self._changed.clear()
            await self._changed.wait()
            if epochs != self._epochs:
                raise EpochOver
        self._open[step_id] = size

    def release(self, step_id: StepId) -> None:
        """This step and all before it need no room any more."""
        while self._open and next(iter(self._open)) <= step_id:
            self._open.popitem(last=False)
        self._changed.set()

    def give_back(self, step_id: StepId) -> None:
        """This step was not sent after all."""
        self._open.pop(step_id, None)
        self._changed.set()

    def reset(self) -> None:
        """A new epoch: nothing is on its way, and step ids start over."""
        self._epochs += 1
        self._open.clear()
        self._changed.set()


class Window:
    """Pieces of one activation that have been sent and not arrived: at most `limit`."""

    def __init__(self, step_id: StepId, limit: int) -> None:
        self.step_id = step_id
        self._limit = limit
        self._sent = 0
        self._arrived = 0
        self._changed = asyncio.Event()
        self._over = False

    async def take(self, timeout: float) -> None:
        """Returns when one more piece may be sent.

        Raises EpochOver, or ActivationLost if nothing arrives within `timeout` seconds.
        """
        while not self._over and self._sent - self._arrived >= self._limit:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), timeout)
            except TimeoutError:
                raise ActivationLost(
                    f"step {self.step_id}: none of {self._sent - self._arrived} pieces of its activations "
                    f"has arrived at the next stage within {timeout:g} s (stage.transfer_timeout_s)"
                ) from None
        if self._over:
            raise EpochOver
        self._sent += 1

    def arrived(self, pieces: int) -> None:
        self._arrived = max(self._arrived, pieces)
        self._changed.set()

    def close(self) -> None:
        self._over = True
        self._changed.set()
