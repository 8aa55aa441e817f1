"""A real OTLP/HTTP receiver that keeps the spans it gets."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


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
                            )
                        )
            self._arrived.notify_all()

    def wait_for(
        self, condition: Callable[[list[ReceivedSpan]], bool], seconds: float = 15
    ) -> list[ReceivedSpan]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: condition(self.spans), seconds), (
                f"not within {seconds} s; spans so far: {sorted({(s.service, s.name) for s in self.spans})}"
            )
            return list(self.spans)
