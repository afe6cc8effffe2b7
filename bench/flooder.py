#!/usr/bin/env python3
"""Floods and well-behaved clients of bench/floods.py, run inside namespaces. The last line is the result, as JSON."""

import argparse
import asyncio
import encodings.idna  # noqa: F401 (needed later, when its file cannot be read any more)
import json
import os
import signal
import ssl
import time

# A client that waits longer has given up; so has a kubelet.
PATIENCE = 10
FAILURES = (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, EOFError)


def told():
    """Set at SIGTERM."""
    event = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, event.set)
    return event


def trusting(*protocols):
    """TLS that believes every server: what counts here is whether it answers."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(protocols)
    return context


async def connect(args, context=None):
    host, port = args.to.rsplit(":", 1)
    more = {"ssl": context, "server_hostname": "istiod.istio-system.svc"} if context else {}
    return await asyncio.wait_for(asyncio.open_connection(host, int(port), **more), PATIENCE)


# HTTP/2 and gRPC, as little as is needed.

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, content=b""):
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


def integer(value, bits):
    """HPACK's integers."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    out, value = bytearray([most]), value - most
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes(out) + bytes([value])


def headers(pairs):
    """Literals that are not to be remembered."""
    out = b""
    for name, value in pairs:
        out += b"\x00" + integer(len(name), 7) + name.encode() + integer(len(value), 7) + value.encode()
    return out


class Grpc:
    """One call on one connection."""

    def __init__(self, streams):
        self.reader, self.writer = streams
        self.window, self.stream_window, self.initial, self.largest = 65535, 65535, 65535, 16384
        self.received, self.ended = 0, asyncio.Event()
        self.room = asyncio.Event()

    async def begin(self, path, token):
        self.writer.write(PREFACE + frame(SETTINGS, 0, 0))
        self.writer.write(frame(HEADERS, END_HEADERS, 1, headers([
            (":method", "POST"), (":scheme", "https"), (":authority", "istiod.istio-system.svc"), (":path", path),
            ("content-type", "application/grpc"), ("te", "trailers"), ("authorization", f"Bearer {token}")])))
        self.reading = asyncio.create_task(self.read())

    async def read(self):
        try:
            while True:
                head = await self.reader.readexactly(9)
                content = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
                self.take(head[3], head[4], int.from_bytes(head[5:], "big"), content)
        except FAILURES:
            pass
        finally:
            self.ended.set()
            self.room.set()

    def take(self, kind, flags, stream, content):
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(content), 6):
                name, value = int.from_bytes(content[at:at + 2], "big"), int.from_bytes(content[at + 2:at + 6], "big")
                if name == 4:
                    self.stream_window += value - self.initial
                    self.initial = value
                if name == 5:
                    self.largest = value
            self.writer.write(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.writer.write(frame(PING, ACK, 0, content))
        elif kind == WINDOW:
            if stream:
                self.stream_window += int.from_bytes(content, "big")
            else:
                self.window += int.from_bytes(content, "big")
        elif kind == DATA:
            self.received += len(content)
        if kind in (RESET, GOAWAY) or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self.ended.set()
        self.room.set()

    async def send(self, message, last=False):
        """A message, at the pace that the server allows."""
        data, at = b"\x00" + len(message).to_bytes(4, "big") + message, 0
        while at < len(data) and not self.ended.is_set():
            size = min(self.window, self.stream_window, self.largest, len(data) - at)
            if size <= 0:
                self.room.clear()
                await self.room.wait()
                continue
            end = last and at + size == len(data)
            self.writer.write(frame(DATA, END_STREAM if end else 0, 1, data[at:at + size]))
            await self.writer.drain()
            self.window, self.stream_window, at = self.window - size, self.stream_window - size, at + size
        return at

    def close(self):
        self.reading.cancel()
        self.writer.close()


def field(number, content):
    """A field of a protobuf message with bytes in it."""
    size, length = len(content), bytearray()
    while size >= 128:
        length.append(size % 128 + 128)
        size //= 128
    length.append(size)
    return bytes([number << 3 | 2]) + bytes(length) + content


# Well-behaved clients: a new connection for each request, as probes and API servers come.

REVIEW = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
    "uid": "u", "namespace": "shop", "operation": "CREATE", "object": {"spec": {"containers": [{"name": "web"}]}}}})
CERTIFICATE = "/istio.v1.auth.IstioCertificateService/CreateCertificate"
DISCOVERY = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"


async def http1(args, context, request, needed=b""):
    reader, writer = await connect(args, context)
    try:
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(65536), PATIENCE)
        if needed:
            while needed not in answer:
                part = await asyncio.wait_for(reader.read(65536), PATIENCE)
                if not part:
                    break
                answer += part
        if not answer.startswith(b"HTTP/1.1 200") or needed not in answer:
            raise ConnectionError(f"answered {answer[:80]!r}")
    finally:
        writer.close()


async def get(args, _context):
    await http1(args, None, f"GET {args.path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


async def review(args, context):
    text = (f"POST /inject HTTP/1.1\r\nHost: istiod\r\nContent-Type: application/json\r\nContent-Length: {len(REVIEW)}\r\n"
            f"Connection: close\r\n\r\n{REVIEW}")
    await http1(args, context, text.encode(), b'"allowed":true')


async def certificate(args, context):
    call = Grpc(await connect(args, context))
    await call.begin(CERTIFICATE, args.token)
    try:
        await asyncio.wait_for(call.send(field(1, args.csr), True), PATIENCE)
        await asyncio.wait_for(call.ended.wait(), PATIENCE)
        if call.received < 100:
            raise ConnectionError("no certificate")
    finally:
        call.close()


async def polite(args):
    """Asks again and again, with pauses. Times in milliseconds."""
    ask, protocol = {"get": (get, "http/1.1"), "review": (review, "http/1.1"), "certificate": (certificate, "h2")}[args.kind]
    end, times, errors = told(), [], {}
    context = trusting(protocol)

    async def client():
        while not end.is_set():
            begin = time.monotonic()
            try:
                await ask(args, context)
                times.append((time.monotonic() - begin) * 1000)
            except FAILURES as error:
                words = f"{type(error).__name__} {error}".strip()
                errors[words] = errors.get(words, 0) + 1
            await asyncio.sleep(0.02)
    print("started", flush=True)
    await asyncio.gather(client(), client())
    print(json.dumps({"times": times, "errors": errors}), flush=True)


# Floods.

async def silent(args, _context):
    return await connect(args)


async def tls(args, context):
    return await connect(args, context)


async def http2(args, context):
    streams = await connect(args, context)
    streams[1].write(PREFACE + frame(SETTINGS, 0, 0))
    return streams


async def half(args, _context):
    streams = await connect(args)
    streams[1].write(b"GET / HTTP/1.1\r\n")
    return streams


async def hold(reader, writer, kind):
    """Until the server closes; an HTTP/2 client answers pings, or it would not be kept."""
    while kind == "http2":
        head = await reader.readexactly(9)
        content = await reader.readexactly(int.from_bytes(head[:3], "big"))
        if head[3] == PING and not head[4] & ACK:
            writer.write(frame(PING, ACK, 0, content))
    while await reader.read(4096):
        pass


async def flood(args):
    """Keeps so many connections open: one that is closed is replaced."""
    opening = {"silent": silent, "tls": tls, "http2": http2, "half": half}[args.kind]
    end, now, opened, tried, context = told(), set(), 0, 0, trusting("h2")
    turn = asyncio.Semaphore(64)

    async def connection():
        nonlocal opened, tried
        while not end.is_set():
            writer = None
            try:
                async with turn:
                    tried += 1
                    reader, writer = await opening(args, context)
                opened += 1
                now.add(writer)
                await hold(reader, writer, args.kind)
            except FAILURES:
                pass
            finally:
                if writer:
                    now.discard(writer)
                    writer.close()
            # The one who floods has two CPUs at most, and they are also those of the victim.
            await asyncio.sleep(2)
    tasks = [asyncio.create_task(connection()) for _ in range(args.connections)]
    while tried < args.connections or turn.locked():
        await asyncio.sleep(0.05)
    print(f"flooding {len(now)}", flush=True)
    await end.wait()
    print(json.dumps({"opened": opened, "held": len(now)}), flush=True)
    for task in tasks:
        task.cancel()
    os._exit(0)


async def discover(args):
    """Discovery requests of one workload: one message with as many names as fit, or many messages."""
    end, sent, context = told(), 0, trusting("h2")
    name, count = b"%020d", args.bytes // 22
    node = field(1, field(1, b"sidecar~10.77.0.20~web-0.shop~shop.svc.cluster.local"))
    kind = field(2, b"type.googleapis.com/istio.workload.Address")
    names = b"".join(field(3, name % number) for number in range(count))
    print("flooding 1", flush=True)
    while not end.is_set():
        try:
            call = Grpc(await connect(args, context))
            await call.begin(DISCOVERY, args.token)
            try:
                while not call.ended.is_set() and not end.is_set():
                    sent += await asyncio.wait_for(call.send(node + kind + names), PATIENCE)
                    await asyncio.sleep(0.1)
            finally:
                call.close()
        except FAILURES:
            pass
        await asyncio.sleep(0.1)
    print(json.dumps({"sent": sent}), flush=True)


def main():
    words = argparse.ArgumentParser()
    words.add_argument("role", choices=["polite", "flood", "discover"])
    words.add_argument("kind", nargs="?")
    words.add_argument("--to", required=True)
    words.add_argument("--path", default="/")
    words.add_argument("--token", default="")
    words.add_argument("--csr", default="")
    words.add_argument("--connections", type=int, default=1)
    words.add_argument("--bytes", type=int, default=0)
    args = words.parse_args()
    if args.csr:
        with open(args.csr, "rb") as file:
            args.csr = file.read()
    # Connections of the pod's application, not of its proxy.
    os.setgid(1000)
    os.setuid(1000)
    asyncio.run(globals()[args.role](args))


main()
