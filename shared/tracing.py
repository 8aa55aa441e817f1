"""One OpenTelemetry trace per request. Off (no-op, free) unless an OTLP endpoint is configured."""

from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract, inject
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer

from shared.config import TracingConfig


class Tracing:
    """The tracer of one service, with its own provider: several services may share a process in tests."""

    def __init__(self, config: TracingConfig, service: str, instance: str) -> None:
        self._provider: TracerProvider | None = None
        if config.otlp_endpoint is None:
            self.tracer: Tracer = trace.NoOpTracer()
            return
        self._provider = TracerProvider(
            resource=Resource.create(
                {"service.name": f"skipjoin.{service}", "service.instance.id": instance}
            ),
            sampler=ParentBased(TraceIdRatioBased(config.sample_ratio)),
        )
        exporter = OTLPSpanExporter(endpoint=config.otlp_endpoint)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=500))
        self.tracer = self._provider.get_tracer("skipjoin")

    @property
    def enabled(self) -> bool:
        return self._provider is not None

    def start(self, name: str, parent: str | None, **attributes: str | int | float) -> Span:
        """Open a span below the W3C traceparent `parent`; the caller ends it."""
        return self.tracer.start_span(
            name, context=context_of(parent), kind=SpanKind.INTERNAL, attributes=attributes
        )

    @contextmanager
    def span(self, name: str, parent: str | None, **attributes: str | int | float) -> Generator[Span]:
        """A span around a block; an exception marks it as an error."""
        span = self.start(name, parent, **attributes)
        try:
            yield span
        except BaseException as error:
            span.set_status(StatusCode.ERROR, str(error))
            raise
        finally:
            span.end()

    def past(
        self, name: str, parent: str | None, seconds: float, now_ns: int, **attributes: str | int | float
    ) -> None:
        """Report a span that ended now and took `seconds`: durations travel, clocks of hosts do not."""
        self.tracer.start_span(
            name,
            context=context_of(parent),
            attributes=attributes,
            start_time=now_ns - round(seconds * 1e9),
        ).end(now_ns)

    def shutdown(self) -> None:
        """Send what is buffered."""
        if self._provider is not None:
            self._provider.shutdown()


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
