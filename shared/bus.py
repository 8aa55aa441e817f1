"""The NATS connection of one service: typed messages, bounded queues, explicit deadlines.

Callbacks of nats-py only put into a queue here: an exception inside one would reach `error_cb` alone, and
callbacks of one subscription run one after another.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import msgspec
import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from shared.config import NatsConfig
from shared.errors import BusClosed, BusError, BusTimeout, NoResponder, PayloadTooLarge
from shared.ids import Epoch, new_instance_id
from shared.messages import Body, Envelope
from shared.metrics import Registry
from shared.nats_client import NatsClient, connection_options
from shared.subjects import Subjects

_T = TypeVar("_T")

log = logging.getLogger("skipjoin.bus")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)
CONNECT_PATIENCE_S = 30.0
"""Services start in any order, the embedded server among them."""

_TRACE = "traceparent"
_HEADER_OVERHEAD = len("NATS/1.0\r\n\r\n") + len(": \r\n")


class Delivery:
    """One received message.

    lost: messages of the same publisher and subject that are missing just before this one
    """

    __slots__ = ("body", "epoch", "lost", "reply_to", "seq", "source", "trace")

    def __init__(self, envelope: Envelope, trace: str | None, reply_to: str, lost: int) -> None:
        self.body: Body = envelope.body
        self.source = envelope.source
        self.epoch = envelope.epoch
        self.seq = envelope.seq
        self.trace = trace
        self.reply_to = reply_to
        self.lost = lost


class Subscription:
    """A bounded queue of deliveries: iterate over it, or ask for the next one.

    When the queue is full the newest message is dropped and counted; its receiver sees it as `lost`.
    """

    def __init__(self, bus: "Bus", subject: str, depth: int) -> None:
        self.subject = subject
        self._bus = bus
        self._queue: asyncio.Queue[Delivery] = asyncio.Queue(depth)
        self._last_seq: dict[tuple[str, str], int] = {}
        self._inner: NatsSubscription | None = None

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        return await self._queue.get()

    async def next(self) -> Delivery:
        """The next delivery, however long it takes."""
        return await self._queue.get()

    async def next_within(self, seconds: float) -> Delivery | None:
        """The next delivery, or None when none came within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return await self._queue.get()
        except TimeoutError:
            return None

    async def start(self, client: Client) -> None:
        self._inner = await client.subscribe(self.subject, cb=self._receive)  # pyright: ignore[reportUnknownMemberType]

    async def close(self) -> None:
        if self._inner is not None and not self._bus.closed:
            await self._inner.unsubscribe()

    async def _receive(self, message: Msg) -> None:
        try:
            envelope = _decoder.decode(message.data)
        except msgspec.DecodeError as error:
            self._bus.count("undecodable")
            log.error("undecodable message on %s dropped: %s", message.subject, error)
            return
        if self._queue.full():
            # The sequence is left as it was, so the gap shows at the next delivery.
            self._bus.count("queue_full")
            log.error("queue of %s is full, a message was dropped", self.subject)
            return
        lost = self._note(message.subject, envelope)
        trace = message.headers.get(_TRACE) if message.headers else None
        self._queue.put_nowait(Delivery(envelope, trace, message.reply, lost))

    def _note(self, subject: str, envelope: Envelope) -> int:
        key = (subject, envelope.source)
        last = self._last_seq.get(key)
        self._last_seq[key] = envelope.seq
        lost = 0 if last is None else max(0, envelope.seq - last - 1)
        if lost:
            self._bus.count("lost", lost)
            log.warning("%d messages of %s on %s are missing", lost, envelope.source, subject)
        return lost


class Bus:
    """Connected for the life of a service; reconnects by itself when the server comes back.

    instance: this process's name on the bus
    epoch: stamped on everything sent; the service sets it when it learns of a newer one
    """

    def __init__(self, client: Client, subjects: Subjects, service: str, registry: Registry) -> None:
        self.subjects = subjects
        self.service = service
        self.instance = new_instance_id()
        self.epoch = Epoch(0)
        self._client: Client = client
        self._seq: dict[str, int] = {}
        self._failure: BusError | None = None
        self._last_error: Exception | None = None
        self._refused = asyncio.Event()
        self._connected_once = False
        self._events = registry.counter(
            "skipjoin_bus_events", "Things that went wrong on the bus, by kind.", ["service", "kind"]
        )

    @classmethod
    async def connect(
        cls,
        config: NatsConfig,
        subjects: Subjects,
        service: str,
        registry: Registry,
        patience: float = CONNECT_PATIENCE_S,
    ) -> "Bus":
        """Connect, waiting up to `patience` seconds for a server that is still starting.

        Raises BusClosed if the server cannot be reached, and at once if it refuses the credentials;
        ConfigError for credentials and certificates that cannot be read.
        """
        options = connection_options(config)
        bus = cls(NatsClient(config), subjects, service, registry)
        connecting = asyncio.ensure_future(bus._connect(options))
        refused = asyncio.ensure_future(bus._refused.wait())
        try:
            done, _ = await asyncio.wait(
                {connecting, refused}, timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            for task in (connecting, refused):
                task.cancel()
            await asyncio.gather(connecting, refused, return_exceptions=True)
            await bus.close()
            raise
        refused.cancel()
        if connecting in done and connecting.exception() is None and bus._failure is None:
            bus._connected_once = True
            return bus
        connecting.cancel()
        (failure,) = await asyncio.gather(connecting, return_exceptions=True)
        await bus.close()
        if refused in done:
            cause: object = "it refused the credentials"
        elif connecting in done and failure is not None:
            cause = failure
        else:
            cause = f"no connection within {patience:.0f} s, {bus._last_error or 'no answer'}"
        raise BusClosed(f"cannot connect to NATS at {config.url}: {cause}")

    async def _connect(self, options: dict[str, Any]) -> None:
        await self._client.connect(
            **options,
            name=f"skipjoin {self.service} {self.instance}",
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.25,  # pyright: ignore[reportArgumentType] - annotated as int, used as seconds
            connect_timeout=2,
            allow_reconnect=True,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnect,
            reconnected_cb=self._on_reconnect,
            closed_cb=self._on_closed,
        )

    async def publish(self, subject: str, body: Body, *, trace: str | None = None) -> None:
        """Send to everyone who listens now.

        Raises PayloadTooLarge before anything is sent, BusClosed if the connection is gone for good.
        """
        payload, headers = self._encode(subject, body, trace)
        try:
            await self._client.publish(subject, payload, headers=headers)
        except nats.errors.Error as error:
            raise self._translate(subject, error) from None

    async def request(
        self, subject: str, body: Body, *, timeout: float, trace: str | None = None
    ) -> Delivery:
        """Send and wait for one answer.

        Raises NoResponder, BusTimeout after `timeout` seconds, PayloadTooLarge, BusClosed.
        """
        payload, headers = self._encode(subject, body, trace)
        try:
            message = await _cancellable(
                self._client.request(subject, payload, timeout=timeout, headers=headers)
            )
        except nats.errors.Error as error:
            raise self._translate(subject, error, timeout) from None
        return Delivery(_decoder.decode(message.data), None, message.reply, 0)

    async def reply(self, delivery: Delivery, body: Body) -> None:
        """Answer a request; does nothing for a message that asked for no answer."""
        if delivery.reply_to:
            await self.publish(delivery.reply_to, body)

    async def subscribe(self, subject: str, *, depth: int = 1024) -> Subscription:
        """Listen on `subject` (wildcards allowed) with a queue of `depth` messages.

        Returns when the server has the interest registered, so nothing sent afterwards is missed.
        """
        subscription = Subscription(self, subject, depth)
        await subscription.start(self._client)
        # nats-py writes a flush's PING to the socket at once, ahead of commands that are still pending: the
        # first PONG proves only that they have been written by now, the second that the server has read them.
        await self._client.flush(timeout=5)
        await self._client.flush(timeout=5)
        return subscription

    async def close(self) -> None:
        if not self._client.is_closed:
            await self._client.close()

    @property
    def closed(self) -> bool:
        return self._client.is_closed

    @property
    def max_payload(self) -> int:
        """Bytes of a message's payload and headers that the server takes."""
        return self._client.max_payload

    def check(self) -> None:
        """Raises BusClosed when the connection is gone for good (a lost one that is being retried is not)."""
        if self._failure is not None:
            raise self._failure

    def count(self, kind: str, amount: int = 1) -> None:
        self._events.labels(self.service, kind).inc(amount)

    def _encode(self, subject: str, body: Body, trace: str | None) -> tuple[bytes, dict[str, str] | None]:
        seq = self._seq.get(subject, 0) + 1
        payload = _encoder.encode(Envelope(self.instance, seq, self.epoch, body))
        size = len(payload) + (_HEADER_OVERHEAD + len(_TRACE) + len(trace) if trace else 0)
        if self._client.is_connected and size > self._client.max_payload:
            raise PayloadTooLarge(subject, size, self._client.max_payload)
        if not subject.startswith("_INBOX"):
            self._seq[subject] = seq
        return payload, {_TRACE: trace} if trace else None

    def _translate(self, subject: str, error: nats.errors.Error, timeout: float | None = None) -> BusError:
        match error:
            case nats.errors.NoRespondersError():
                return NoResponder(f"nobody serves {subject}")
            case nats.errors.TimeoutError():
                return BusTimeout(f"no answer on {subject} within {timeout} s")
            case nats.errors.ConnectionClosedError() | nats.errors.ConnectionDrainingError():
                return BusClosed("the NATS connection is closed")
            case _:
                return BusError(f"{subject}: {error!r}")

    async def _on_error(self, error: Exception) -> None:
        kind = type(error).__name__
        self.count(kind)
        self._last_error = error
        if isinstance(error, ConnectionRefusedError) and not self._connected_once:
            log.debug("waiting for the NATS server")  # services start in any order
        else:
            log.error("NATS: %s: %s", kind, error)
        if "authorization violation" in str(error).lower():  # nats-py has no type of its own for it
            self._failure = BusClosed("NATS refused the credentials")
            self._refused.set()

    async def _on_disconnect(self) -> None:
        self.count("disconnected")

    async def _on_reconnect(self) -> None:
        self.count("reconnected")
        log.warning("reconnected to NATS")

    async def _on_closed(self) -> None:
        self._failure = self._failure or BusClosed("the NATS connection is closed")


async def _cancellable(waiting: Awaitable[_T]) -> _T:
    """What it returns or raises. A cancellation always comes through: Python 3.11's `wait_for`, which nats-py
    uses, loses one that comes in the same turn of the loop as what it waits for.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        return await waiting
    finally:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError
