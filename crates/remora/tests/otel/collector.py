"""Receives spans by OTLP over HTTP and writes a line for each, with what its resource says."""

import gzip
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/traces":
            tell(ExportTraceServiceRequest.FromString(body))
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def tell(request):
    for group in request.resource_spans:
        resource = " ".join(sorted(f"{a.key}={a.value.string_value}" for a in group.resource.attributes))
        for scope in group.scope_spans:
            for span in scope.spans:
                print(f"span {span.name!r} of {scope.scope.name} {resource}", flush=True)


# The first process of a container is not ended by a signal that it does not mind.
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
# Who is here may be asked without a certificate; spans are taken from the mesh only.
open_port = ThreadingHTTPServer(("", 8081), Receiver)
threading.Thread(target=open_port.serve_forever, daemon=True).start()
ThreadingHTTPServer(("", 4318), Receiver).serve_forever()
