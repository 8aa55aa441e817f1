"""Ray Serve's own span of a request, `replica_handle_request`, in the request's trace: above the gateway's.

Serve asks a function without arguments for what exports its spans, in the process of every replica; so the
collector is named in OpenTelemetry's own variables, which must be set before Ray starts. HAProxy makes none.
"""

import os
from typing import Any

from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from shared.config import TracingConfig
from shared.tracing import exporter_of

_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
_PROTOCOLS = {"http": "http/protobuf", "grpc": "grpc"}


def tracing_environment(config: TracingConfig) -> dict[str, str]:
    """Variables of an instance; none if it is not traced."""
    if config.otlp_endpoint is None:
        return {}
    return {
        _ENDPOINT: config.otlp_endpoint,
        _PROTOCOL: _PROTOCOLS[config.protocol],
        "OTEL_SERVICE_NAME": "skipjoin.ingress",
    }


def serve_options(config: TracingConfig) -> dict[str, Any]:
    """Of `serve.start`."""
    if config.otlp_endpoint is None:
        return {}
    return {
        "tracing_config": {
            "enabled": True,
            "exporter_import_path": f"{__name__}:{span_processors.__name__}",
            "sampling_ratio": config.sample_ratio,
        }
    }


def span_processors() -> list[SpanProcessor]:
    """Called by Ray Serve in each of its processes."""
    protocol = "grpc" if os.environ[_PROTOCOL] == "grpc" else "http"
    exporter = exporter_of(TracingConfig(otlp_endpoint=os.environ[_ENDPOINT], protocol=protocol))
    return [BatchSpanProcessor(exporter, schedule_delay_millis=500)]


def serve_traces() -> bool:
    """Whether Ray Serve records spans in this process, and so decides which requests are traced."""
    from ray.serve._private.tracing_utils import is_tracing_enabled

    return is_tracing_enabled()
