"""One OpenTelemetry trace per request. Off (no-op, free) unless an OTLP endpoint is configured."""

from collections.abc import Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract, inject
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import Link, Span, SpanContext, StatusCode, Tracer

from shared.config import TracingConfig

Attributes = Mapping[str, str | int | float | Sequence[str]]

QUEUED_SPANS = 16_384
"""Waiting to be sent, at most; a job may end with a hundred at once."""


class Tracing:
    """The tracer of one service, with its own provider: several services may share a process in tests."""

    def __init__(
        self, config: TracingConfig, service: str, instance: str, sampler: Sampler = ALWAYS_ON
    ) -> None:
        """sampler: of spans without a parent; those with one are recorded if it is"""
        self._provider: TracerProvider | None = None
        self._ids = _ChosenIds()
        if config.otlp_endpoint is None:
            self.tracer: Tracer = trace.NoOpTracer()
            return
        self._provider = TracerProvider(
            resource=Resource.create(
                {"service.name": f"skipjoin.{service}", "service.instance.id": instance}
            ),
            sampler=ParentBased(sampler),
            id_generator=self._ids,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter_of(config), max_queue_size=QUEUED_SPANS, schedule_delay_millis=500)
        )
        self.tracer = self._provider.get_tracer("skipjoin")

    @property
    def enabled(self) -> bool:
        return self._provider is not None

    def past(
        self, name: str, parent: str | None, seconds: float, now_ns: int, **attributes: str | int | float
    ) -> None:
        """Report a span that ended now and took `seconds`: durations travel, clocks of hosts do not."""
        self.record(name, parent, now_ns - round(seconds * 1e9), now_ns, attributes)

    def reserve(self, parent: str) -> str:
        """The W3C traceparent of a span below `parent` that is recorded later, so that others can be below it
        already.
        """
        version, trace_id, _, flags = parent.split("-")
        return f"{version}-{trace_id}-{self._ids.generate_span_id():016x}-{flags}"

    def record(
        self,
        name: str,
        parent: str | None,
        start_ns: int,
        end_ns: int,
        attributes: Attributes,
        *,
        span: str | None = None,
        links: Sequence[Link] = (),
        error: str | None = None,
    ) -> None:
        """Report a span that is over. span: the reserved traceparent that it was given; error: what failed"""
        if span is not None:
            self._ids.next_span_id = int(span.split("-")[2], 16)
        over = self.tracer.start_span(
            name, context_of(parent), attributes=attributes, links=links, start_time=start_ns
        )
        if error is not None:
            over.set_status(StatusCode.ERROR, error)
        over.end(end_ns)

    def shutdown(self) -> None:
        """Send what is buffered."""
        if self._provider is not None:
            self._provider.shutdown()


class _ChosenIds(RandomIdGenerator):
    """next_span_id: of the next span, if it was promised one"""

    next_span_id: int | None = None

    def generate_span_id(self) -> int:
        chosen, self.next_span_id = self.next_span_id, None
        return super().generate_span_id() if chosen is None else chosen


def exporter_of(config: TracingConfig) -> SpanExporter:
    """Sends spans to `config.otlp_endpoint`, which must be set."""
    if config.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint=config.otlp_endpoint)
    return OTLPSpanExporter(endpoint=config.otlp_endpoint)


def span_context_of(traceparent: str | None) -> SpanContext:
    """What a W3C traceparent names, to link to."""
    return trace.get_current_span(context_of(traceparent)).get_span_context()


def context_of(traceparent: str | None) -> Context:
    """The OpenTelemetry context of a W3C traceparent; an empty one without."""
    return extract({"traceparent": traceparent}) if traceparent else Context()


def traceparent_of(span: Span) -> str | None:
    """The W3C traceparent that makes others children of `span`; None if it is not recorded."""
    if not span.get_span_context().trace_flags.sampled:
        return None
    carrier: dict[str, str] = {}
    inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier.get("traceparent")
