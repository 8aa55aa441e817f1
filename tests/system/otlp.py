"""Real OTLP receivers, over HTTP and gRPC, that keep the spans they get."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True)
class ReceivedSpan:
    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    is_error: bool
    attributes: dict[str, Any]
    links: tuple[str, ...]
    """Ids of the spans that it is linked to."""

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None


class Collector:
    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self._arrived = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                collector._receive(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _receive(self, request: ExportTraceServiceRequest) -> None:
        with self._arrived:
            for resource in request.resource_spans:
                names = {a.key: a.value.string_value for a in resource.resource.attributes}
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        self.spans.append(
                            ReceivedSpan(
                                names["service.name"],
                                span.name,
                                span.trace_id.hex(),
                                span.span_id.hex(),
                                span.parent_span_id.hex(),
                                span.start_time_unix_nano,
                                span.end_time_unix_nano,
                                span.status.code == 2,
                                {each.key: _value(each.value) for each in span.attributes},
                                tuple(link.span_id.hex() for link in span.links),
                            )
                        )
            self._arrived.notify_all()

    @contextmanager
    def over_grpc(self) -> Iterator[str]:
        """The endpoint of a gRPC receiver that keeps its spans here, too."""
        collector = self

        class Servicer(TraceServiceServicer):
            def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
                collector._receive(request)
                return ExportTraceServiceResponse()

        server = grpc.server(ThreadPoolExecutor(2))
        add_TraceServiceServicer_to_server(Servicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.stop(None).wait()

    def wait_for(
        self, condition: Callable[[list[ReceivedSpan]], bool], seconds: float = 15
    ) -> list[ReceivedSpan]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: condition(self.spans), seconds), (
                f"not within {seconds} s; spans so far: {sorted({(s.service, s.name) for s in self.spans})}"
            )
            return list(self.spans)
