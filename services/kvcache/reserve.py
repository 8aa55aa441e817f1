"""How many device blocks to keep free for jobs that have not arrived yet."""

_PLANS_AHEAD = 8
"""Iterations that freeing blocks is ahead of need: a copy out takes about one of them."""

_RECENT = 0.05
"""Weight of the last plan in the mean of recent ones."""

_LARGEST_SHARE = 0.25
"""Of the device tier; more would idle what running jobs could use."""


class Reserve:
    """Predicted from recent arrivals (FastServe, section 4.2: "at least K idle slots").

    total: device blocks; smallest: K, blocks
    """

    def __init__(self, total: int, smallest: int) -> None:
        self._most = int(total * _LARGEST_SHARE)
        self._smallest = smallest
        self._per_plan = 0.0

    @property
    def blocks(self) -> int:
        expected = max(self._smallest, round(self._per_plan * _PLANS_AHEAD))
        return min(expected, self._most)

    def planned(self, new_blocks: int) -> None:
        """A plan gave `new_blocks` to jobs that held none before."""
        self._per_plan += _RECENT * (new_blocks - self._per_plan)
