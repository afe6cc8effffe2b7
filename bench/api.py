#!/usr/bin/env python3
"""An API server in a few lines, for a control plane that reads a cluster: usage: api.py PORT

Objects can be listed, watched (nothing ever happens), created and changed; every token that is not empty is that of
service account shop/web.
"""

import http.server
import json
import sys
import threading
import urllib.parse

OBJECTS, LOCK = {}, threading.Lock()


def place(path):
    """Plural, namespace and name."""
    words = path.strip("/").split("/")
    words = words[2:] if words[0] == "api" else words[3:]
    if words[:1] == ["namespaces"] and len(words) > 2:
        return words[2], words[1], words[3] if len(words) > 3 else None
    return (words[0] if words else ""), "", words[1] if len(words) > 1 else None


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, value):
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def failure(self, code, reason):
        self.answer(code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason, "reason": reason,
                           "code": code})

    def do_GET(self):
        address = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(address.query)
        plural, namespace, name = place(address.path)
        if plural in ("authorizationpolicies", "peerauthentications"):
            return self.failure(404, "NotFound")
        with LOCK:
            if name:
                found = OBJECTS.get((plural, namespace, name))
                return self.answer(200, found) if found else self.failure(404, "NotFound")
            if "watch" not in query:
                items = [o for (p, n, _), o in OBJECTS.items() if p == plural and namespace in ("", n)]
                return self.answer(200, {"kind": "List", "apiVersion": "v1", "items": items,
                                         "metadata": {"resourceVersion": "1"}})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        threading.Event().wait()

    def write(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        plural, namespace, name = place(urllib.parse.urlsplit(self.path).path)
        if plural == "tokenreviews":
            user = {"username": "system:serviceaccount:shop:web"}
            body["status"] = {"authenticated": True, "audiences": ["istio-ca"], "user": user}
            return self.answer(201, body)
        if not isinstance(body, dict):
            return self.failure(404, "NotFound")
        metadata = body.setdefault("metadata", {})
        name = name or metadata.get("name")
        metadata.update(name=name, namespace=namespace, resourceVersion="1")
        with LOCK:
            if self.command == "POST" and (plural, namespace, name) in OBJECTS:
                return self.failure(409, "AlreadyExists")
            OBJECTS[plural, namespace, name] = body
        self.answer(200, body)

    do_POST = do_PUT = do_PATCH = write


http.server.ThreadingHTTPServer.daemon_threads = True
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("listening", flush=True)
server.serve_forever()
