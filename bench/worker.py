#!/usr/bin/env python3
"""Applications and loads of bench/reliability.py, run inside pods. The last line is the result, as JSON."""

import argparse
import asyncio
import encodings.idna  # noqa: F401 (needed later, when its file cannot be read any more)
import json
import os
import signal
import socket
import ssl

REQUEST = b"GET / HTTP/1.1\r\nHost: cart\r\n\r\n"
# Longer than any fault lasts: what is answered late is late, not lost.
PATIENCE = 30


def told():
    """Set at SIGTERM."""
    event = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, event.set)
    return event


async def serve(_args):
    """Answers; when told to end it says so to clients that keep connections, as a well-behaved application does."""
    end, busy = told(), set()

    async def answer(reader, writer):
        busy.add(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                close = b"Connection: close\r\n" if end.is_set() else b""
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + close + b"\r\nok")
                await writer.drain()
                if close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            busy.discard(writer)
            writer.close()

    server = await asyncio.start_server(answer, "0.0.0.0", 8080, backlog=1024)
    await end.wait()
    # Clients that keep connections ask once more and see that it is the last time; others may be on their way.
    calm = 0
    for _ in range(90):
        await asyncio.sleep(0.1)
        calm = 0 if busy else calm + 1
        if calm == 15:
            break
    server.close()


async def ask(reader, writer):
    """Whether the connection may be used again."""
    writer.write(REQUEST)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    if not head.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(head.split(b"\r\n")[0].decode())
    await asyncio.wait_for(reader.readexactly(2), PATIENCE)
    return b"Connection: close" not in head


async def open_to(args):
    host, port = args.to.rsplit(":", 1)
    return await asyncio.wait_for(asyncio.open_connection(host, int(port)), PATIENCE)


class Count:
    def __init__(self):
        self.ok, self.errors = 0, {}

    def failed(self, kind, error):
        words = f"{kind}: {type(error).__name__} {error}".strip()
        self.errors[words] = self.errors.get(words, 0) + 1

    def add(self, other):
        self.ok += other.ok
        for words, number in other.errors.items():
            self.errors[words] = self.errors.get(words, 0) + number

    def say(self):
        lost = sum(self.errors.values())
        print(json.dumps({"requests": self.ok, "lost": lost, "errors": self.errors}), flush=True)


FAILURES = (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError)


async def fresh(args, end, count):
    """A new connection for each request."""
    while not end.is_set():
        try:
            reader, writer = await open_to(args)
            try:
                await ask(reader, writer)
                count.ok += 1
            finally:
                writer.close()
        except FAILURES as error:
            count.failed("new connection", error)
            await asyncio.sleep(0.05)


async def kept(args, end, count):
    """One connection for as long as the server wants."""
    while not end.is_set():
        try:
            reader, writer = await open_to(args)
            try:
                while not end.is_set():
                    again = await ask(reader, writer)
                    count.ok += 1
                    if not again:
                        break
                    await asyncio.sleep(0.01)
            finally:
                writer.close()
        except FAILURES as error:
            count.failed("kept connection", error)
            await asyncio.sleep(0.05)


async def load(args):
    """Says that it started when every client had an answer, or did not get one."""
    end, counts = told(), [Count() for _ in range(args.fresh + args.kept)]
    work = [fresh] * args.fresh + [kept] * args.kept
    tasks = [asyncio.create_task(client(args, end, count)) for client, count in zip(work, counts)]
    while not all(count.ok or count.errors for count in counts):
        await asyncio.sleep(0.01)
    print("started", flush=True)
    await asyncio.gather(*tasks)
    total = Count()
    for count in counts:
        total.add(count)
    total.say()


async def all_of(work, items, count, kind):
    """The results of `work` on all items, some at once: on a busy machine each takes long."""
    turn, results = asyncio.Semaphore(32), []

    async def one(item):
        async with turn:
            try:
                results.append(await work(item))
            except FAILURES as error:
                count.failed(kind, error)
    await asyncio.gather(*(one(item) for item in items))
    return results


async def hold(args):
    """Opens many connections with a request each, keeps them, and asks once more on each at the end."""
    end, count = told(), Count()

    async def open_one(_number):
        stream = await open_to(args)
        await ask(*stream)
        return stream

    async def ask_again(stream):
        await ask(*stream)
        count.ok += 1
    held = await all_of(open_one, range(args.connections), count, "open")
    print(f"holding {len(held)}", flush=True)
    await end.wait()
    await all_of(ask_again, held, count, "held")
    count.say()


# HTTP/2, as little of it as a tunnel without streams needs.
SETTINGS, PING, ACK = 4, 6, 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, content=b""):
    return len(content).to_bytes(3, "big") + bytes([kind, flags, 0, 0, 0, 0]) + content


class Tunnel:
    """Answers settings and pings, or the other side takes it for dead."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.known, self.answered, self.error = asyncio.Event(), asyncio.Event(), None
        writer.write(PREFACE + frame(SETTINGS, 0))
        self.reading = asyncio.create_task(self.read())

    async def read(self):
        try:
            while True:
                head = await self.reader.readexactly(9)
                content = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
                kind, is_answer = head[3], head[4] & ACK
                if kind in (SETTINGS, PING) and not is_answer:
                    self.writer.write(frame(kind, ACK, content if kind == PING else b""))
                elif kind in (SETTINGS, PING):
                    (self.known if kind == SETTINGS else self.answered).set()
        except FAILURES as error:
            self.error = error
            self.known.set()
            self.answered.set()

    async def wait(self, event):
        await asyncio.wait_for(event.wait(), PATIENCE)
        if self.error:
            raise self.error

    async def ping(self):
        self.writer.write(frame(PING, 0, b"tunnel??"))
        await self.wait(self.answered)


async def tunnels(args):
    """Opens many tunnels of a mesh peer, keeps them, and pings each at the end."""
    end, count, addresses = told(), Count(), args.to.split(",")
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Workloads have SPIFFE ids and no names.
    trust.check_hostname = False
    trust.load_verify_locations(f"{args.files}/root-cert.pem")
    trust.load_cert_chain(f"{args.files}/cert-chain.pem", f"{args.files}/key.pem")
    trust.set_alpn_protocols(["h2"])

    async def open_one(number):
        address = addresses[number % len(addresses)]
        connecting = asyncio.open_connection(address, 15008, ssl=trust, ssl_handshake_timeout=PATIENCE)
        tunnel = Tunnel(*await asyncio.wait_for(connecting, PATIENCE))
        await tunnel.wait(tunnel.known)
        return tunnel

    async def ping(tunnel):
        await tunnel.ping()
        count.ok += 1
    held = await all_of(open_one, range(args.connections), count, "open")
    print(f"holding {len(held)}", flush=True)
    await end.wait()
    await all_of(ping, held, count, "held")
    count.say()


async def flood(args):
    """Opens connections and keeps those it gets."""
    end, held = told(), []
    for _ in range(args.connections):
        try:
            held.append(await open_to(args))
        except FAILURES:
            pass
    print(f"holding {len(held)}", flush=True)
    await end.wait()
    print(json.dumps({"requests": 0, "lost": 0, "errors": {}}), flush=True)


async def relay(args):
    """Between sidecars and the control plane, and as bad as the mode in a file says."""
    async def copy(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def wanted():
        with open(args.mode) as file:
            return file.read().strip()

    async def cut_at_changes():
        mode = wanted()
        while True:
            await asyncio.sleep(0.1)
            if wanted() != mode:
                mode = wanted()
                for writer in list(open_now):
                    writer.transport.abort()

    async def connection(reader, writer):
        open_now.add(writer)
        try:
            await treat(reader, writer, wanted())
        finally:
            open_now.discard(writer)
            writer.close()

    async def treat(reader, writer, mode):
        if mode == "garbage":
            writer.write(bytes(range(256)) * 16)
        if mode == "silent":
            await asyncio.sleep(3600)
        if mode in ("garbage", "refuse"):
            return
        if mode == "slow":
            await asyncio.sleep(3)
        host, port = args.to.rsplit(":", 1)
        try:
            far = await asyncio.open_connection(host, int(port))
        except OSError:
            return
        await asyncio.gather(copy(reader, far[1]), copy(far[0], writer))

    open_now = set()
    server = await asyncio.start_server(connection, "0.0.0.0", 15012)
    cutting = asyncio.create_task(cut_at_changes())
    print("started", flush=True)
    async with server:
        await asyncio.gather(server.serve_forever(), cutting)


def main():
    words = argparse.ArgumentParser()
    words.add_argument("role", choices=["serve", "load", "hold", "flood", "relay", "tunnels"])
    words.add_argument("--to", default="")
    words.add_argument("--fresh", type=int, default=4)
    words.add_argument("--kept", type=int, default=4)
    words.add_argument("--connections", type=int, default=1000)
    words.add_argument("--mode", default="")
    words.add_argument("--files", default="")
    words.add_argument("--uid", type=int, default=0)
    args = words.parse_args()
    # Not before: Python itself may lie where only root can read.
    os.setgid(args.uid)
    os.setuid(args.uid)
    socket.setdefaulttimeout(PATIENCE)
    asyncio.run(globals()[args.role](args))


main()
