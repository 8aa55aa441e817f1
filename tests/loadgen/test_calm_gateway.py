"""The measurement of the gateway's cost measures what it says, on a few short streams."""

import pytest

from loadgen.calm.streams import Ended, Load, NotBegun, Streams
from loadgen.calm_gateway import Alone

pytestmark = pytest.mark.system
BUDGET_MS = 0.3
"""CPU of the gateway per streamed token."""


async def test_streams_beside_a_lone_request() -> None:
    async with Alone(period=0.02) as alone:
        await alone.cost(8, 8)
        ended, cpu_ms = await alone.cost(40, 50)
        assert ended == Ended({"complete": 40}, 2000)
        assert 0 < cpu_ms < BUDGET_MS
        idle = await alone.waits(10, 0)
        loaded = await alone.waits(10, 40)
        for wait in (idle, loaded):
            assert 0 < wait.own < wait.first_token
        too_long = 3_000_000  # tokens: more than fit any context here
        with pytest.raises(NotBegun, match="400"):
            async with Streams(Load(alone.url, alone.model, 2, too_long, begun=2)):
                pass
