"""Floods of connections and messages, with a well-behaved client at the same time. See README.md."""

import base64
import json
import os
import pathlib
import subprocess
import sys
import time

from judge import percentile
from world import CONTROL, HERE, SERVICE, World, memory, wait_until

FLOODER, POLITE, VICTIM = "10.77.0.20", "10.77.0.21", "10.77.0.11"
# Above this the table says so. It is a time, and says as much about the machine.
RATIO = 10


def floods(args, report):
    report.line("| what | well-behaved client | idle: requests, p50, p99 (ms) "
                "| during the flood: requests, **failed**, p50, p99 (ms) | p99, times | flood "
                "| victim's memory before, most, after (MiB) |")
    report.line("|---|---|---|---|---|---|---|")
    seconds = max(args.seconds / 12, 3)
    of_control(args, report, seconds)
    of_sidecar(args, report, seconds)


class Client:
    """What a well-behaved client asks, and from where."""

    def __init__(self, name, namespace, kind, to, *words):
        self.name, self.namespace, self.words = name, namespace, ("polite", kind, "--to", to, *words)


def measured(report, world, name, victim, clients, flood, seconds):
    """`flood`: namespace and words. The same clients before and during it."""
    before, idle = memory(victim), [asked(world, client, seconds) for client in clients]
    pathlib.Path(f"/proc/{victim.pid}/clear_refs").write_text("5")
    process = start(world, flood[0], *flood[1:])
    wait_until(f"the flood {name!r}", lambda: "flooding" in process.log.read_text(), 300)
    try:
        during = [asked(world, client, seconds) for client in clients]
    finally:
        done = result(world, process)
    held = f"{done['held']} held, {done['opened']} opened" if "held" in done else f"{done['sent'] / 1e6:.0f} MB sent"
    most = highest(victim)
    time.sleep(3)
    used = f"{before:.0f}, {most:.0f}, {memory(victim):.0f}"
    for client, quiet, loud in zip(clients, idle, during):
        row(report, name, client.name, quiet, loud, held, used)
    if victim.poll() is not None:
        report.problem(f"{name}: the victim ended")


def row(report, name, client, quiet, loud, held, used):
    def times(found):
        return [percentile(found["times"], share) for share in (0.5, 0.99)]
    (_, idle), (_, busy) = times(quiet), times(loud)
    ratio, failed = busy / idle, sum(loud["errors"].values())
    report.row(name, client, f"{len(quiet['times'])}, " + ", ".join(f"{t:.1f}" for t in times(quiet)),
               f"{len(loud['times'])}, **{failed}**, " + ", ".join(f"{t:.1f}" for t in times(loud)),
               f"{ratio:.1f}" + (" (warning: more than ten)" if ratio > RATIO else ""), held, used)
    if quiet["errors"]:
        report.problem(f"{name}: {client} fails without a flood: {quiet['errors']}")
    if failed or not loud["times"]:
        report.problem(f"{name}: {client}: {failed} failed: {loud['errors']}")


def connections(kind, to, count):
    return "flood", kind, "--to", to, "--connections", count


def start(world, namespace, *words):
    world.number += 1
    words = [sys.executable, str(HERE / "flooder.py"), *map(str, words)]
    return world.start(namespace, words, 0, f"{words[2]}-{world.number}.log")


def asked(world, client, seconds):
    process = start(world, client.namespace, *client.words)
    world.said(process, "started")
    time.sleep(seconds)
    return result(world, process)


def result(world, process):
    world.end(process, seconds=120)
    lines = process.log.read_text().splitlines()
    return json.loads(lines[-1])


def highest(process):
    """The most that was resident since it was reset."""
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


# The control plane of a cluster.

def token():
    claims = json.dumps({"aud": ["istio-ca"], "exp": int(time.time()) + 3600, "sub": "shop/web"}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).rstrip(b'=').decode()}.good"


def control_of_cluster(world):
    """`remora control` as `remora install` starts it, with an API server of our own."""
    api = world.start(world.plane, [sys.executable, str(HERE / "api.py"), "6443"], 0, "api.log")
    world.said(api, "listening")
    config = world.place / "kubeconfig"
    config.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:6443"}}], "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}))
    control = world.start(world.plane, [str(world.remora), "control", "--kubeconfig", str(config)], 0, "control.log",
                          world.descriptors)

    def ready():
        try:
            return world.plane.get(15014, "/ready")[0] == 200
        except OSError:
            return False
    wait_until("the control plane is ready", ready, 60)
    return control


def request(world):
    """A request for a certificate of spiffe://cluster.local/ns/shop/sa/web."""
    path = world.place / "request.pem"
    subprocess.run(["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-keyout", os.devnull, "-subj", "/", "-out", path,
                    "-addext", "subjectAltName=URI:spiffe://cluster.local/ns/shop/sa/web"], check=True, capture_output=True)
    return path


def of_control(args, report, seconds):
    world = World(args.remora)
    try:
        control = control_of_cluster(world)
        bad, good = world.attach(FLOODER), world.attach(POLITE)
        show, csr = token(), request(world)
        certificates = Client("certificate requests (15012)", good, "certificate", f"{CONTROL}:15012",
                              "--token", show, "--csr", csr)
        reviews = Client("admission reviews (15017)", good, "review", f"{CONTROL}:15017")
        live = Client("liveness (15014)", good, "get", f"{CONTROL}:15014", "--path", "/live")

        def flooded(name, clients, *flood):
            measured(report, world, name, control, clients, (bad, *flood), seconds)
        flooded("4,000 silent TCP connections to 15012", [certificates], *connections("silent", f"{CONTROL}:15012", 4000))
        flooded("540 idle TLS connections to 15012", [certificates], *connections("tls", f"{CONTROL}:15012", 540))
        flooded("540 idle HTTP/2 connections to 15017", [reviews], *connections("http2", f"{CONTROL}:15017", 540))
        flooded("300 silent connections to 15014", [live], *connections("silent", f"{CONTROL}:15014", 300))
        discovery = ("discover", "--to", f"{CONTROL}:15012", "--token", show, "--bytes")
        flooded("discovery messages of 62 MB", [certificates, reviews, live], *discovery, 62_000_000)
        flooded("discovery messages of 4 MB, 180,000 names each", [certificates, reviews, live], *discovery, 4_000_000)
    finally:
        world.close()


# The sidecar of a pod.

def of_sidecar(args, report, seconds):
    world = World(args.remora, life="24h")
    try:
        world.control()
        world.server(VICTIM)
        world.client()
        world.list_servers(VICTIM)
        bad = world.attach(FLOODER)
        victim = world.servers[VICTIM].sidecar
        ready = Client("readiness (15021)", world.node, "get", f"{VICTIM}:15021", "--path", "/healthz/ready")
        metrics = Client("metrics (15020)", world.node, "get", f"{VICTIM}:15020", "--path", "/stats/prometheus")
        mesh = Client("requests of a mesh client", world.web, "get", f"{SERVICE}:80")

        def flooded(name, clients, *flood):
            measured(report, world, name, victim, clients, (bad, *flood), seconds)
        flooded("600 idle connections to 15021", [ready], *connections("silent", f"{VICTIM}:15021", 600))
        flooded("600 idle connections to 15020", [metrics, ready], *connections("silent", f"{VICTIM}:15020", 600))
        flooded("7,500 half-open plaintext requests", [mesh, ready], *connections("half", f"{VICTIM}:8080", 7500))
    finally:
        world.close()
