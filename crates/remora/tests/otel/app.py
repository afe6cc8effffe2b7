"""An application that makes a span in each part of its life: app.py migrate|serve

It configures nothing: the SDK is there because Python found it on its path.
"""

import signal
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry import trace

tracer = trace.get_tracer("shop")


def span(name):
    with tracer.start_as_current_span(name):
        pass


def migrate():
    span("before")
    # A span of the instrumentation's own: nobody asked for it here.
    urllib.request.urlopen("http://collector:8081/").read()


def serve():
    span("starting")
    trace.get_tracer_provider().force_flush()
    asked = threading.Event()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            asked.set()

        def log_message(self, *_):
            pass

    server = HTTPServer(("", 8080), Answer)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asked.wait()
    span("running")
    trace.get_tracer_provider().force_flush()
    stop.wait()
    # What is left is sent while Python ends.
    span("stopping")


{"migrate": migrate, "serve": serve}[sys.argv[1]]()
