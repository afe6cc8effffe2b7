#!/usr/bin/env python3
"""What a mesh loses while it is mistreated. See README.md.

    bench/run soak [--seconds 120] [--idle 10000]
    bench/run faults [--seconds 120] [--dynamic PATH] [--faketime PATH]
    bench/run floods [--seconds 60]

Exit code 0: nothing was lost that the mesh can keep, nothing grew, nothing is left. Nothing that is judged depends on
how fast the machine is. Options of all: [--remora PATH] [--out DIRECTORY].
"""

import argparse
import math
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime

from floods import floods
from judge import expired, floors, grows, is_enough
from world import CLIENT, CONTROL, SERVICE, World, config, descriptors, memory, processor, wait_until

ROOT = pathlib.Path(__file__).resolve().parent.parent
SERVERS = ["10.77.0.11", "10.77.0.12"]
POD = """
apiVersion: v1
kind: Pod
metadata: {name: hello, namespace: shop, labels: {app: hello}}
spec:
  containers:
  - name: hello
    image: remora
    args: [demo, hello, --port, '8080']
"""


class Report:
    def __init__(self):
        self.lines, self.problems = [], []

    def problem(self, words):
        print("PROBLEM:", words, flush=True)
        self.problems.append(words)

    def row(self, *cells):
        print(" | ".join(map(str, cells)), flush=True)
        self.lines.append("| " + " | ".join(map(str, cells)) + " |")

    def line(self, text=""):
        self.lines.append(text)


# Soak.

class Samples(threading.Thread):
    """Memory and descriptors of processes over time, taken in the background."""

    def __init__(self, processes):
        super().__init__(daemon=True)
        self.processes, self.seen = processes, {name: [] for name in processes}
        self.over = threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(0.2):
            for name, process in self.processes.items():
                self.seen[name].append((memory(process), descriptors(process)))

    def enough(self):
        """Whether there is something to judge, however long that takes."""
        return all(is_enough(seen) for seen in self.seen.values())

    def end(self):
        self.over.set()
        self.join()

    def judge(self, report, phase):
        for name, seen in self.seen.items():
            for index, unit, slack in ((0, "MiB", 4), (1, "descriptors", 16)):
                series = [sample[index] for sample in seen]
                floor = floors(series)
                report.row(phase, name, unit, f"{series[0]:.0f}", *(f"{value:.0f}" for value in floor[1:]),
                           f"{max(series):.0f}")
                if grows(series, slack):
                    report.problem(f"{phase}: {name} grows: {floor[1:]} {unit}")


class Certificate(threading.Thread):
    """Looks at the certificate that a sidecar uses: how often it is another, and whether it ever was not valid."""

    def __init__(self, pod):
        super().__init__(daemon=True)
        self.pod, self.renewals, self.validity, self.over = pod, 0, [], threading.Event()
        self.start()

    def run(self):
        last = None
        while not self.over.wait(0.2):
            certificate = config(self.pod)["certificate"]
            until = datetime.fromisoformat(certificate["notAfter"].replace("Z", "+00:00")).timestamp()
            self.validity.append((time.time(), until))
            if last is not None:
                self.renewals += certificate["generation"] - last
            last = certificate["generation"]

    def end(self):
        self.over.set()
        self.join()


def rollout(world, old, new):
    """A pod is replaced as a Deployment does it: the new one is ready before the old one is taken away."""
    world.server(new)
    listed = [a for a, s in world.servers.items() if s.listed]
    world.list_servers(*listed, new)
    world.list_servers(*[a for a in listed if a != old], new)
    world.leave(old)


ROUNDS = 3
# However slow the machine is, a round in which nothing happened for so long is no soak.
PATIENCE = 180


class Soak:
    """Load, while the control plane restarts every ten seconds and pods are replaced every fifteen."""

    def __init__(self, world, control):
        self.world, self.plane = world, control
        self.restarts, self.rollouts, self.last = 0, 0, int(SERVERS[-1].rsplit(".", 1)[1])
        self.restart = self.roll = time.monotonic()

    def step(self):
        time.sleep(0.2)
        now = time.monotonic()
        if now > self.restart + 10:
            # In turns: asked to end, and killed.
            self.world.end(self.plane, signal.SIGKILL if self.restarts % 2 else signal.SIGTERM)
            time.sleep(1)
            self.plane = self.world.control()
            self.restarts, self.restart = self.restarts + 1, time.monotonic()
        if now > self.roll + 15:
            self.last = self.last + 1 if self.last < 250 else 20
            rollout(self.world, next(iter(self.world.servers)), f"10.77.0.{self.last}")
            self.rollouts, self.roll = self.rollouts + 1, time.monotonic()
        self.world.reap()

    def round(self, report, number, seconds, certificate):
        """Lasts until its time is over and a certificate was renewed and the control plane restarted in it."""
        begin, renewed, restarts = time.monotonic(), certificate.renewals, self.restarts
        while True:
            self.step()
            spent = time.monotonic() - begin
            done = certificate.renewals > renewed and self.restarts > restarts
            if spent > seconds and done:
                return certificate.renewals - renewed
            if spent > seconds + PATIENCE:
                report.problem(f"soak: no renewal or no restart in part {number} ({spent:.0f} s)")
                return certificate.renewals - renewed


def soak(args, report):
    report.line("| phase | process | | start | second quarter | third | last | most |")
    report.line("|---|---|---|---|---|---|---|---|")
    world = World(args.remora)
    try:
        work = Soak(world, started(world))
        load = world.load("--fresh", 4, "--kept", 4)
        samples, certificate = Samples({"client sidecar": world.web.sidecar}), Certificate(world.web)
        begin = time.monotonic()
        renewals = [work.round(report, n + 1, args.seconds * 0.6 / ROUNDS, certificate) for n in range(ROUNDS)]
        while not samples.enough():
            work.step()
        spent = time.monotonic() - begin
        samples.end()
        certificate.end()
        result = world.result(load)
        samples.judge(report, "rotation, restarts, rollouts")
        world.reap(wait=True)
    finally:
        world.close()
    if result["lost"] or not result["requests"]:
        report.problem(f"soak: {result['lost']} requests lost: {result['errors']}")
    if late := expired(certificate.validity):
        report.problem(f"soak: the certificate in force had expired in {len(late)} of {len(certificate.validity)} looks")
    held = idle(args, report)
    report.line("")
    report.line(f"{result['requests']} requests, **{result['lost']} lost**, in {spent:.0f} s while the client's certificate "
                f"was renewed {sum(renewals)} times ({', '.join(map(str, renewals))} in the thirds; never expired in "
                f"{len(certificate.validity)} looks), the control plane restarted {work.restarts} times and {work.rollouts} "
                "pods were replaced.")
    for text in held:
        report.line("")
        report.line(text)


def idle(args, report):
    """Connections and tunnels that are kept and not used."""
    # Certificates live for as long as this lasts: an idle tunnel ends with the certificate it rests on.
    world = World(args.remora, life="24h")
    # A sidecar takes a third as many connections as it may have descriptors, and keeps a share for other peers.
    most = int((world.descriptors - 64) / 3 * 0.75)
    pods = max(2, math.ceil(args.idle / most))
    try:
        world.control()
        servers = [f"10.77.0.{11 + n}" for n in range(pods)]
        clients = [CLIENT, *(f"10.77.0.{100 + n}" for n in range(1, pods))]
        for address in servers:
            world.server(address)
        for address in clients:
            world.client(address)
        world.list_servers(*servers)
        world.result(wait_a_second(world))
        share = [args.idle // pods + (n < args.idle % pods) for n in range(pods)]

        def connections():
            return [world.worker(pod, "hold", "--to", f"{SERVICE}:80", "--connections", count)
                    for pod, count in zip(world.clients.values(), share)]
        outside = world.attach("10.77.0.9")

        def tunnels():
            files = world.place / CLIENT / "out"
            return [world.worker(outside, "tunnels", "--to", ",".join(servers), "--connections", count,
                                 "--files", files, uid=0) for count in share]
        limit = f"`RLIMIT_NOFILE` {world.descriptors}, so {pods} client and {pods} server pods"
        return [hold(args, report, world, "idle connections", connections, ("client", "server"), limit),
                hold(args, report, world, "idle tunnels", tunnels, ("server",), limit)]
    finally:
        world.close()


def hold(args, report, world, what, start, sides, limit):
    """Memory while `start`'s workers hold what they opened, and whether each of it still works at the end."""
    named = sidecars_of(world)
    # A sidecar at rest gives memory back that only work needed.
    time.sleep(5)
    before = {name: (memory(p), descriptors(p)) for name, p in named.items()}
    holders = start()
    for holder in holders:
        wait_until(what, lambda worker=holder: "holding" in worker.log.read_text(), 900)
    samples = Samples(named)
    time.sleep(max(args.seconds * 0.1, 10))
    wait_until("enough samples", samples.enough, 600)
    samples.end()
    with_all = {name: memory(p) for name, p in named.items()}
    results = [world.result(holder, 600) for holder in holders]
    samples.judge(report, f"{args.idle} {what}")
    answered = sum(result["requests"] for result in results)
    if answered != args.idle:
        report.problem(f"{what}: {answered} of {args.idle} answered: {[result['errors'] for result in results]}")
    settled(report, what, world, {name: count for name, (_, count) in before.items()})
    def each(side):
        return sum(with_all[name] - before[name][0] for name in named if name.startswith(side)) * 1024 / args.idle
    used = " and ".join(f"{each(side):.1f} KiB in the {side}'s sidecar" for side in sides)
    # What a sidecar at rest gives back and takes again is a few MiB, whatever it holds.
    memory_of_each = f"each used {used}" if args.idle >= 5000 else "too few to say how much memory each uses"
    return f"{args.idle} {what} ({limit}): {answered} answered at the end; {memory_of_each}."


def sidecars_of(world):
    named = {}
    for side, pods in (("client", world.clients), ("server", world.servers)):
        for number, pod in enumerate(pods.values()):
            named[f"{side} sidecar {number + 1}"] = pod.sidecar
    return named


def settled(report, what, world, before):
    """Descriptors come back when the work is over."""
    for name, process in sidecars_of(world).items():
        end = time.monotonic() + 60
        while descriptors(process) > before[name] + 32 and time.monotonic() < end:
            time.sleep(0.2)
        if descriptors(process) > before[name] + 32:
            report.problem(f"{what}: {name} keeps {descriptors(process)} descriptors, {before[name]} before")


def started(world, port=15012):
    control = world.control(port)
    for address in SERVERS:
        world.server(address)
    world.client()
    world.list_servers(*SERVERS)
    return control


# Faults.

def faulted(report, world, name, expected, fault, most=0):
    """Load before, during and after a fault. `most`: requests that may be lost while it lasts; none may afterwards."""
    process = world.web.sidecar
    before = memory(process), descriptors(process)
    load = world.load("--fresh", 3, "--kept", 3)
    time.sleep(1)
    try:
        fault()
        time.sleep(0.5)
    finally:
        during = world.result(load)
    after = world.result(wait_a_second(world))
    used = "started again"
    if process is world.web.sidecar:
        end = time.monotonic() + 30
        while descriptors(process) > before[1] + 32 and time.monotonic() < end:
            time.sleep(0.2)
        grown = memory(process) - before[0], descriptors(process) - before[1]
        used = f"{grown[0]:+.0f} MiB, {grown[1]:+d} descriptors"
        # A sidecar at rest gives back most of its memory: what it needs for work is no growth.
        if grown[0] > 32 or grown[1] > 32:
            report.problem(f"{name}: the client sidecar grew: {used}")
    report.row(name, expected, f"{during['requests']} answered, {during['lost']} lost",
               f"{after['requests']} answered, {after['lost']} lost", used)
    if during["lost"] > most:
        report.problem(f"{name}: {during['lost']} requests lost: {during['errors']}")
    if after["lost"] or not after["requests"]:
        report.problem(f"{name}: does not recover: {after}")
    if not during["requests"]:
        report.problem(f"{name}: nothing was answered: {during}")


def wait_a_second(world):
    load = world.load("--fresh", 3, "--kept", 3)
    time.sleep(1)
    return load


def faults(args, report):
    report.line("| fault | what is expected | while it lasts | afterwards | client sidecar |")
    report.line("|---|---|---|---|---|")
    world = World(args.remora)
    mode = world.place / "relay-mode"
    mode.write_text("pass")
    pause = max(args.seconds / 40, 2)
    try:
        relay = world.worker(world.plane, "relay", "--to", f"{CONTROL}:15112", "--mode", mode)
        world.said(relay, "started")
        state = {"control": started(world, 15112)}
        kills(report, world, state, pause)
        stops(report, world, state, pause)
        authority(report, world, mode, pause)
        killed_starts(report, world, state)
        killed_first_starts(report, world, state)
        stages_of_sidecar(report, world)
        killed_envoys(report, world)
        without_descriptors(report, world)
    finally:
        world.close()
    full_disk(args, report)
    killed_runs(args, report)
    clock_jumps(args, report, pause)


def kills(report, world, state, pause):
    def control():
        world.end(state["control"], signal.SIGKILL)
        time.sleep(pause)
        state["control"] = world.control(15112)
    faulted(report, world, "kill -9 of the control plane", "nothing is lost", control)

    def server():
        pod = world.servers[SERVERS[0]]
        world.end(pod.sidecar, signal.SIGKILL)
        time.sleep(pause)
        pod.sidecar = world.sidecar(pod, "cart")
        world.ready(pod)
    faulted(report, world, "kill -9 of one of two server sidecars",
            "at most what is in flight there is lost (one for each of six clients)", server, 6)

    def client():
        world.end(world.web.sidecar, signal.SIGKILL)
        time.sleep(pause)
        world.web.sidecar = world.sidecar(world.web, "web")
        world.ready(world.web)
    faulted(report, world, "kill -9 of the client sidecar", "its pod's requests fail until it is back", client, math.inf)


def stops(report, world, state, pause):
    def stopped(process):
        def fault():
            process.send_signal(signal.SIGSTOP)
            time.sleep(min(pause, 8))
            process.send_signal(signal.SIGCONT)
        return fault
    faulted(report, world, "SIGSTOP of the control plane", "nothing is lost", stopped(state["control"]))
    sidecar = world.servers[SERVERS[1]].sidecar
    faulted(report, world, "SIGSTOP of a server sidecar", "answers are late, nothing is lost", stopped(sidecar))


def authority(report, world, mode, pause):
    """Certificates are renewed every few seconds, through this."""
    for name, word in (("answers after 3 s", "slow"), ("answers with garbage", "garbage"), ("closes every connection", "refuse"),
                       ("never answers", "silent")):
        def fault(word=word):
            mode.write_text(word)
            time.sleep(pause * 2)
            mode.write_text("pass")
        faulted(report, world, f"certificate authority {name}", "the last certificate stays, nothing is lost", fault)


def without_descriptors(report, world):
    """A client sidecar with 100 descriptors, and more connections than it can have."""
    world.end(world.web.sidecar)
    world.web.sidecar = world.sidecar(world.web, "web", descriptors=160)
    world.ready(world.web)
    flood = world.worker(world.web, "flood", "--to", f"{SERVICE}:80", "--connections", 400)
    wait_until("a flood", lambda: "holding" in flood.log.read_text())
    used = descriptors(world.web.sidecar)
    world.end(flood)
    time.sleep(0.5)
    recovered(report, world, "EMFILE: `ulimit -n 160`, 400 connections", "refused above the limit, recovers",
              f"{used} descriptors in use")


def killed_starts(report, world, state):
    """Killed while they start, at different stages; the next start has to work."""
    for seconds in (0.005, 0.02, 0.1, 0.4):
        pod = world.servers[SERVERS[0]]
        world.end(pod.sidecar)
        pod.sidecar = world.sidecar(pod, "cart")
        time.sleep(seconds)
        world.end(pod.sidecar, signal.SIGKILL)
        pod.sidecar = world.sidecar(pod, "cart")
        world.end(state["control"], signal.SIGKILL)
        control = world.start_control(15112)
        time.sleep(seconds)
        world.end(control, signal.SIGKILL)
        state["control"] = world.control(15112)
        world.ready(pod)
    recovered(report, world, "kill -9 of control plane and sidecar 5 to 400 ms after their start", "the next start works")


def recovered(report, world, name, expected, meanwhile=""):
    after = world.result(wait_a_second(world))
    report.row(name, expected, meanwhile, f"{after['requests']} answered, {after['lost']} lost", "")
    if after["lost"] or not after["requests"]:
        report.problem(f"{name}: does not recover: {after}")


def killed_first_starts(report, world, state):
    """The control plane is killed while it makes its root certificate. One that was made is never made again."""
    authority, kept, roots = world.place / "ca", world.place / "ca.kept", set()
    world.end(state["control"])
    authority.rename(kept)
    try:
        for step in range(12):
            process = world.start_control(15112)
            time.sleep(0.002 * step)
            world.end(process, signal.SIGKILL)
            if (root := authority / "root-cert.pem").exists():
                roots.add(root.read_text())
        process = world.control(15112)
        roots.add((authority / "root-cert.pem").read_text())
        world.end(process)
    finally:
        shutil.rmtree(authority, ignore_errors=True)
        kept.rename(authority)
    state["control"] = world.control(15112)
    world.ready(world.web)
    if len(roots) > 1:
        report.problem(f"killed first starts: {len(roots)} different roots")
    recovered(report, world, "kill -9 of the control plane 0 to 22 ms after its first start, twelve times",
              "one root certificate, and the next start works", f"{len(roots)} root")


def stages_of_sidecar(report, world):
    """Killed when readiness names another stage: sockets, certificate, discovery, connections, drain."""
    pod, seen = world.servers[SERVERS[0]], []

    def killed(stage, reached):
        world.end(pod.sidecar)
        pod.sidecar = world.sidecar(pod, "cart")
        wait_until(f"a sidecar at stage {stage}", lambda: reached(pod))
        world.end(pod.sidecar, signal.SIGKILL)
        seen.append(stage)
    killed("it answers", answers)
    killed("certificate", lambda pod: "certified for" in last_start(pod))
    killed("discovery", lambda pod: "discovery is in sync" in last_start(pod))
    killed("ready", world.is_ready)

    def draining(pod):
        pod.sidecar.send_signal(signal.SIGTERM)
        return True
    killed("drain", lambda pod: world.is_ready(pod) and draining(pod))
    pod.sidecar = world.sidecar(pod, "cart")
    world.ready(pod)
    recovered(report, world, "kill -9 of a sidecar (agent and built-in proxy, one process) at each stage of its life",
              "the next start works", ", ".join(seen))


def answers(pod):
    try:
        return pod.get(15021, "/healthz/ready")[0] in (200, 503)
    except OSError:
        return False


def last_start(pod):
    """What a sidecar wrote since it was started: each start begins its log."""
    return pod.sidecar.log.read_text(errors="replace")


def killed_envoys(report, world):
    """The agent of a sidecar whose proxy is an Envoy takes it along."""
    envoy = shutil.which("envoy")
    name = "kill -9 of an agent whose proxy is an Envoy, before and after Envoy runs"
    if not envoy:
        report.row(name, "no Envoy is left", "NOT RUN: there is no `envoy` in PATH", "", "")
        return
    pod = world.attach("10.77.0.30", captured=True)
    left = []
    for seconds in (0.01, 0.1, None):
        agent = world.sidecar(pod, "cart", words=("--binaryPath", envoy))
        if seconds:
            time.sleep(seconds)
        else:
            wait_until("an Envoy", lambda: children(agent), 60)
        mine = children(agent)
        world.end(agent, signal.SIGKILL)
        end = time.monotonic() + 20
        while any(pathlib.Path(f"/proc/{pid}").exists() for pid in mine) and time.monotonic() < end:
            time.sleep(0.05)
        left += [pid for pid in mine if pathlib.Path(f"/proc/{pid}").exists()]
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    report.row(name, "no Envoy is left", f"{len(left)} left", "", "")
    if left:
        report.problem(f"{name}: {len(left)} left")


def children(process):
    threads = pathlib.Path(f"/proc/{process.pid}/task").glob("*/children")
    return [pid for path in threads for pid in path.read_text().split()]


# Clocks.

LIBRARY = "usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
FAKETIME = ["/" + LIBRARY, "/var/tmp/remora-ci/libfaketime/" + LIBRARY]


def clock_jumps(args, report, pause):
    """The date of a machine cannot be changed for one program, but what a program is shown can: libfaketime stands
    between it and the C library, where a statically linked program has nothing to stand between."""
    library = args.faketime or next((path for path in FAKETIME if os.path.exists(path)), None)
    name = "the date jumps by two days, both ways"
    if not args.dynamic or not library:
        needed = "`--dynamic`, a remora that is linked dynamically, and libfaketime"
        report.row(name, "see README.md", f"NOT RUN: needs {needed}", "", "")
        return
    for who, whose, closed in (("the client", CLIENT, True), ("one of two servers", SERVERS[0], False),
                               ("the control plane", CONTROL, False)):
        jump_of(args, report, library, who, whose, closed, pause)


def jump_of(args, report, library, who, whose, closed, pause):
    """`closed`: whether new connections must fail while the date is wrong."""
    with tempfile.TemporaryDirectory(prefix="remora-reliability-") as place:
        os.chmod(place, 0o755)
        clock = pathlib.Path(place, "clock")
        clock.write_text("+0\n")
        # Only the date jumps. What measures how long something takes has its own clock, here as in reality.
        world = World(args.dynamic, preload={whose: {
            "LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}})
        try:
            control = started(world)
            process = {CLIENT: world.web.sidecar, CONTROL: control}.get(whose) or world.servers[whose].sidecar
            for jump in ("+2d", "-2d"):
                jumped(report, world, process, who, jump, clock, closed, pause)
            # Renewal goes on, everywhere.
            for pod in (world.web, *world.servers.values()):
                before = config(pod)["certificate"]["generation"]
                wait_until(f"a new certificate of {pod.address} after the jumps",
                           lambda pod=pod, before=before: config(pod)["certificate"]["generation"] > before, 120)
        finally:
            world.close()


def jumped(report, world, process, who, jump, clock, closed, pause):
    name = f"the date of {who} jumps by {jump[:-1]} days"
    others = "new ones are refused, until it is right again" if closed else "nothing is lost"
    expected = f"open connections go on, {others}"
    kept = world.load("--fresh", 0, "--kept", 3)
    clock.write_text(jump + "\n")
    fresh, used, begin = world.load("--fresh", 3, "--kept", 0), processor(process), time.monotonic()
    time.sleep(pause * 2)
    share = (processor(process) - used) / (time.monotonic() - begin)
    during = world.result(fresh)
    clock.write_text("+0\n")
    wait_until("new connections after the date is right again", lambda: works_again(world), 120)
    after = world.result(wait_a_second(world))
    old = world.result(kept)
    report.row(name, expected, f"open: {old['requests']} answered, {old['lost']} lost; new: {during['requests']} answered, "
               f"{during['lost']} refused",
               f"{after['requests']} answered, {after['lost']} lost", f"{share * 100:.0f} % of a CPU meanwhile")
    if old["lost"] or not old["requests"]:
        report.problem(f"{name}: open connections: {old}")
    if closed and during["requests"]:
        report.problem(f"{name}: {during['requests']} new connections were let through")
    if not closed and (during["lost"] or not during["requests"]):
        report.problem(f"{name}: new connections: {during}")
    if after["lost"] or not after["requests"]:
        report.problem(f"{name}: does not recover: {after}")
    if share > 0.9:
        report.problem(f"{name}: {share * 100:.0f} % of a CPU: it spins")
    if process.poll() is not None or "panicked" in process.log.read_text(errors="replace"):
        report.problem(f"{name}: {process.log.read_text(errors='replace')[-2000:]}")


def works_again(world):
    result = world.result(wait_a_second(world))
    return result["requests"] and not result["lost"]


def mounts():
    return pathlib.Path("/proc/self/mountinfo").read_text().splitlines()


def words_of(process):
    """Where a process or its container's file system names a place."""
    for name in ("cmdline", "environ", "mountinfo"):
        try:
            yield process.joinpath(name).read_text(errors="replace")
        except OSError:
            continue


def processes_of(path):
    """The processes of a run, those in its containers too."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        if entry.name != str(os.getpid()) and any(str(path) in text for text in words_of(entry)):
            found.append(entry.name)
    return found


def gone(report, name, place, before):
    """Whether processes and mounts are gone, which ends with the namespaces of the dead."""
    end = time.monotonic() + 15
    while time.monotonic() < end and (processes_of(place) or len(mounts()) > before):
        time.sleep(0.1)
    left = len(processes_of(place)), len(mounts()) - before
    if left[0] or left[1] > 0:
        report.problem(f"{name}: {left[0]} processes and {left[1]} mounts left")
    return f"{left[0]} processes, {max(left[1], 0)} mounts left"


def start_run(args, place, state):
    """A `remora run` of one pod."""
    manifest = pathlib.Path(place, "pod.yaml")
    manifest.write_text(POD)
    with open(pathlib.Path(place, "run.log"), "wb") as log:
        process = subprocess.Popen([args.remora, "run", "-f", manifest, "--plain", "--state-dir", state,
                                    "--image-store", f"{place}/images"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    process.log = pathlib.Path(place, "run.log")
    return process


# What `remora run` says, in this order; it is killed as soon as it says so.
STAGES = ("", "Init:0/2", "captured, no proxy listens", "Init:1/2", "through the proxy", "PodInitializing", "Running",
          "everything is ready", "Terminating")


def killed_runs(args, report):
    name = "kill -9 of `remora run` at each stage"
    with tempfile.TemporaryDirectory(prefix="remora-reliability-") as place:
        before, state, lefts = len(mounts()), pathlib.Path(place, "state"), []
        for stage in STAGES:
            process = start_run(args, place, state)
            until(process, "everything is ready" if stage == "Terminating" else stage)
            if stage == "Terminating":
                process.send_signal(signal.SIGINT)
                until(process, stage)
            process.kill()
            process.wait()
            lefts.append(gone(report, f"kill -9 of `remora run` at {stage!r}", place, before))
        # The next one works, and takes away the files of those that were killed.
        process = start_run(args, place, state)
        until(process, "everything is ready")
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
        lefts.append(gone(report, name, place, before))
        files = [path.name for path in state.iterdir()] if state.exists() else []
        report.row(name, "no process and no mount is left; the next run works and removes the files",
                   f"{len(STAGES)} stages: " + ", ".join(sorted(set(lefts))), f"exit {code}, {len(files)} directories left", "")
        if code not in (0, 130) or files:
            report.problem(f"{name}: exit {code}, left: {files}")


def until(process, words):
    """Looked at without rest: a stage may be short."""
    end = time.monotonic() + 120
    while words not in process.log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"remora run never says {words!r}: {process.log.read_text(errors='replace')}")


def full_disk(args, report):
    """The pod cannot be made, which is said; it starts when there is room."""
    with tempfile.TemporaryDirectory(prefix="remora-reliability-") as place:
        state = pathlib.Path(place, "full")
        state.mkdir()
        before = len(mounts())
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", state], check=True)
        process = None
        try:
            with open(state / "filler", "wb", buffering=0) as filler:
                try:
                    while filler.write(b"\0" * (1 << 20)):
                        pass
                except OSError:
                    pass
            log = pathlib.Path(place, "run.log")
            process = start_run(args, place, f"{state}/state")
            wait_until("a word about the full disk", lambda: "No space left" in log.read_text(errors="replace"))
            (state / "filler").unlink()
            wait_until("everything is ready", lambda: "everything is ready" in log.read_text(errors="replace"))
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
        finally:
            if process and process.poll() is None:
                process.kill()
                process.wait()
            subprocess.run(["umount", "-l", state], check=True)
        left = gone(report, "full disk", f"{state}/state", before)
        report.row("full disk below `remora run`'s state", "says so, tries again, goes on when there is room",
                   "said", f"ready, exit {code}", left)
        if code not in (0, 130):
            report.problem(f"full disk: exit {code}")


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("part", choices=["soak", "faults", "floods"])
    words.add_argument("--seconds", type=float, default=120)
    words.add_argument("--idle", type=int, default=10_000)
    words.add_argument("--remora", default=shutil.which("remora"))
    words.add_argument("--dynamic", help="a remora that is linked dynamically, for clocks that jump")
    words.add_argument("--faketime", help="libfaketime.so.1")
    words.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results")
    args = words.parse_args()
    # What was started is ended, also when this is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if os.geteuid() != 0 or not args.remora:
        raise SystemExit("needs root, and a remora (--remora)")
    report = Report()
    report.line(f"## {args.part}")
    report.line("")
    report.line(f"`bench/run {args.part} --seconds {args.seconds:.0f}`, {platform.machine()}, {os.cpu_count()} CPUs, "
                f"load {os.getloadavg()[0]:.1f} before.")
    report.line("")
    {"soak": soak, "faults": faults, "floods": floods}[args.part](args, report)
    report.line("")
    report.line("Problems: " + ("; ".join(report.problems) or "none") + ".")
    write(args.out / "reliability.md", args.part, "\n".join(report.lines) + "\n")
    sys.exit(1 if report.problems else 0)


def write(path, part, text):
    """Replaces one part of the results and keeps the other."""
    old = path.read_text() if path.exists() else ""
    parts = {section.split("\n", 1)[0]: "## " + section for section in old.split("\n## ")[1:]}
    parts[part] = text
    title = "# Reliability\n\n"
    order = [name for name in ("soak", "faults", "floods") if name in parts]
    path.write_text(title + "\n".join(parts[name].rstrip("\n") + "\n" for name in order))


if __name__ == "__main__":
    main()
