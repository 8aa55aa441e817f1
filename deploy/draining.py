"""Before everything is stopped: answers that are under way come to their end.

Ray Serve stops all deployments at once. A gateway that waited for its streams then would wait for a scheduler
that is gone.
"""

import asyncio

from shared.bus import Bus, Subscription
from shared.config import Config
from shared.messages import DRAINED, Drain, Hello
from shared.metrics import Registry
from shared.subjects import Subjects

_ANSWER_S = 2.0
"""On top of the time that answers get."""


async def drain(config: Config, hurry: asyncio.Event, gateways: int | None = None) -> bool:
    """Returns whether every gateway replica is drained; gives up after gateway.drain_s, or in a `hurry`.

    gateways: how many there are now; default: gateway.replicas
    """
    bus = await Bus.connect(config.nats, Subjects(config.app), "console", Registry())
    try:
        hellos = await bus.subscribe(bus.subjects.hello("gateway"))
        await bus.publish(bus.subjects.drain, Drain())
        done = asyncio.create_task(_all_drained(hellos, gateways or config.gateway.replicas))
        given_up = asyncio.create_task(hurry.wait())
        await asyncio.wait(
            {done, given_up},
            timeout=config.gateway.drain_s + _ANSWER_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        drained = done.done()
        for task in (done, given_up):
            task.cancel()
        return drained
    finally:
        await bus.close()


async def _all_drained(hellos: Subscription, replicas: int) -> None:
    drained: set[str] = set()
    while len(drained) < replicas:
        hello = (await hellos.next()).body
        if isinstance(hello, Hello) and hello.detail == DRAINED:
            drained.add(hello.instance)
