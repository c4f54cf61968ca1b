"""OTLP/HTTP collector on a real port that stores the decoded requests."""

from __future__ import annotations

import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Span:
    """A span as it came, with its resource."""

    def __init__(self, raw: Any, resource: dict[str, Any], scope: str) -> None:
        self.name: str = raw.name
        self.trace: str = raw.trace_id.hex()
        self.id: str = raw.span_id.hex()
        self.parent: str = raw.parent_span_id.hex()
        self.kind: str = {0: "", 1: "INTERNAL", 2: "SERVER", 3: "CLIENT"}[raw.kind]
        self.attributes = plain(raw.attributes)
        self.failed: bool = raw.status.code == 2
        self.message: str = raw.status.message
        self.began: int = raw.start_time_unix_nano
        self.ended: int = raw.end_time_unix_nano
        self.service: str = resource["service.name"]
        self.scope = scope

    def __repr__(self) -> str:
        return f"{self.service}/{self.kind}:{self.name}"


def plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class Collector:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.points: list[tuple[str, dict[str, Any], Any]] = []  # (name of the metric, attributes, data point)
        self.bodies: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(self.path, body)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, path: str, body: bytes) -> None:
        self.bodies.append(body)
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                about = plain(resource.resource.attributes)
                for scope in resource.scope_spans:
                    self.spans += [Span(raw, about, scope.scope.name) for raw in scope.spans]
        elif path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        data = getattr(metric, metric.WhichOneof("data"))
                        self.points += [(metric.name, plain(each.attributes), each) for each in data.data_points]

    def wait_for(self, count: int, within: float = 30) -> list[Span]:
        end = time.monotonic() + within
        while len(self.spans) < count and time.monotonic() < end:
            time.sleep(0.05)
        return self.spans

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
