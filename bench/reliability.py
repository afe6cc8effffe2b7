#!/usr/bin/env python3
"""What a mesh loses while it is mistreated. See README.md.

    bench/run soak [--seconds 120] [--idle 10000]
    bench/run faults [--seconds 120]

Exit code 0: nothing was lost that the mesh can keep, nothing grew, nothing is left. Options of both: [--remora PATH]
[--out DIRECTORY].
"""

import argparse
import json
import math
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from world import CLIENT, CONTROL, SERVICE, World, descriptors, memory, wait_until

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

class Samples:
    """Memory and descriptors of processes over time."""

    def __init__(self, processes):
        self.processes, self.seen = processes, {name: [] for name in processes}

    def take(self):
        for name, process in self.processes.items():
            self.seen[name].append((memory(process), descriptors(process)))

    def judge(self, report, phase):
        """The last third must not lie above the middle third by more than noise."""
        for name, seen in self.seen.items():
            third = max(len(seen) // 3, 1)
            middle, last = seen[third:2 * third] or seen, seen[-third:]
            for index, unit, slack in ((0, "MiB", 4), (1, "descriptors", 64)):
                before, after = (statistics.median(s[index] for s in part) for part in (middle, last))
                report.row(phase, name, unit, f"{seen[0][index]:.0f}", f"{before:.0f}", f"{after:.0f}",
                           f"{max(s[index] for s in seen):.0f}")
                if after > before * 1.15 + slack:
                    report.problem(f"{phase}: {name} grew from {before:.0f} to {after:.0f} {unit}")


class Changes(threading.Thread):
    """Counts how often a file becomes another, until its end."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.count, self.over = path, 0, threading.Event()
        self.start()

    def run(self):
        last = ""
        while not self.over.wait(0.1):
            now = self.path.read_text() if self.path.exists() else last
            self.count, last = self.count + (now != last), now

    def end(self):
        self.over.set()
        self.join()
        return self.count


def rollout(world, old, new):
    """A pod is replaced as a Deployment does it: the new one is ready before the old one is taken away."""
    server = world.server(new)
    world.list_servers(*[a for a, s in world.servers.items() if s.listed], new)
    world.reload()
    world.list_servers(*[a for a, s in world.servers.items() if s.listed and a != old])
    world.reload()
    gone = world.servers.pop(old)
    gone.sidecar.send_signal(signal.SIGTERM)
    gone.app.send_signal(signal.SIGTERM)
    for process in (gone.sidecar, gone.app):
        # Not asked again: a second SIGTERM means at once.
        world.end(process, None)
    world.write_mesh()
    world.namespaces.remove(gone)
    gone.close()
    return server


def soak(args, report):
    report.line("| phase | process | | start | middle third | last third | most |")
    report.line("|---|---|---|---|---|---|---|")
    world = World(args.remora)
    try:
        control = started(world)
        load = world.load("--fresh", 4, "--kept", 4)
        sidecars = {"client sidecar": world.web.sidecar}
        certificate = world.place / CLIENT / "out/cert-chain.pem"
        restarts, rollouts, at = 0, 0, 11
        samples, rotations = Samples(sidecars), Changes(certificate)
        begin = time.monotonic()
        restart, roll = begin + 10, begin + 15
        while time.monotonic() < begin + args.seconds * 0.6:
            time.sleep(0.5)
            samples.take()
            if time.monotonic() > restart:
                # In turns: asked to end, and killed.
                world.end(control, signal.SIGKILL if restarts % 2 else signal.SIGTERM)
                time.sleep(1)
                control, restarts, restart = world.control(), restarts + 1, time.monotonic() + 10
            if time.monotonic() > roll:
                old = next(iter(world.servers))
                at += 2
                rollout(world, old, f"10.77.0.{at if at < 250 else 13}")
                rollouts, roll = rollouts + 1, time.monotonic() + 15
        result = world.result(load)
        samples.judge(report, "rotation, restarts, rollouts")
        summary = (f"{result['requests']} requests, **{result['lost']} lost**, while the client's certificate was renewed {rotations.end()} "
                   f"times, the control plane restarted {restarts} times and {rollouts} pods were replaced.")
        if result["lost"]:
            report.problem(f"soak: {result['lost']} requests lost: {result['errors']}")
        if rotations.count < args.seconds * 0.6 / 5:
            report.problem(f"soak: only {rotations.count} certificates in {args.seconds * 0.6:.0f} s")
        idle(args, world, report)
    finally:
        world.close()
    report.line("")
    report.line(summary)


def idle(args, world, report):
    """Connections that are kept and not used."""
    # Each connection has two ends and a tunnel or pipes between in a proxy, and the proxy keeps a share for others.
    count = min(args.idle, int((world.descriptors - 64) / 3 * 0.8))
    before = {name: descriptors(p) for name, p in sidecars_of(world).items()}
    holder = world.worker(world.web, "hold", "--to", f"{SERVICE}:80", "--connections", count)
    wait_until("idle connections", lambda: "holding" in holder.log.read_text(), 300)
    samples = Samples(sidecars_of(world))
    end = time.monotonic() + max(args.seconds * 0.2, 6)
    while time.monotonic() < end:
        samples.take()
        time.sleep(0.5)
    world.end(holder, seconds=120)
    result = json.loads(holder.log.read_text().splitlines()[-1])
    samples.judge(report, f"{count} idle connections")
    if result["lost"] or result["requests"] != count:
        report.problem(f"idle: {result['requests']} of {count} answered: {result['errors']}")
    settled(report, "idle", world, before)


def sidecars_of(world):
    named = {"client sidecar": world.web.sidecar}
    for number, server in enumerate(world.servers.values()):
        named[f"server sidecar {number + 1}"] = server.sidecar
    return named


def settled(report, what, world, before):
    """Descriptors come back when the work is over."""
    for name, process in sidecars_of(world).items():
        end = time.monotonic() + 30
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
    world.reload()
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
        grown = memory(process) - before[0], descriptors(process) - before[1]
        used = f"{grown[0]:+.0f} MiB, {grown[1]:+d} descriptors"
        if grown[0] > 16 or grown[1] > 32:
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
        without_descriptors(report, world)
    finally:
        world.close()
    full_disk(args, report)
    killed_runs(args, report)
    report.row("clock jumps by two days, both ways", "open connections go on, new ones only when the date is right again",
               "not injected here", "`proof::time`, `proof::expiry`", "")


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
    """Certificates are renewed every second, through this."""
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
    after = world.result(wait_a_second(world))
    report.row("EMFILE: `ulimit -n 160`, 400 connections", "refused above the limit, recovers", f"{used} descriptors in use",
               f"{after['requests']} answered, {after['lost']} lost", "")
    if after["lost"] or not after["requests"]:
        report.problem(f"EMFILE: does not recover: {after}")


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
    after = world.result(wait_a_second(world))
    report.row("kill -9 of control plane and sidecar 5 to 400 ms after their start", "the next start works", "",
               f"{after['requests']} answered, {after['lost']} lost", "")
    if after["lost"] or not after["requests"]:
        report.problem(f"killed starts: does not recover: {after}")


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
        return subprocess.Popen([args.remora, "run", "-f", manifest, "--plain", "--state-dir", state,
                                 "--image-store", f"{place}/images"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def killed_runs(args, report):
    for seconds in (0.05, 0.2, 0.5, 1, 3):
        with tempfile.TemporaryDirectory(prefix="remora-reliability-") as place:
            before = len(mounts())
            process = start_run(args, place, f"{place}/state")
            time.sleep(seconds)
            process.kill()
            process.wait()
            left = gone(report, f"kill -9 of `remora run` after {seconds} s", place, before)
            report.row(f"kill -9 of `remora run` after {seconds} s", "nothing is left", left, "", "")


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
    words.add_argument("part", choices=["soak", "faults"])
    words.add_argument("--seconds", type=float, default=120)
    words.add_argument("--idle", type=int, default=10_000)
    words.add_argument("--remora", default=shutil.which("remora"))
    words.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results")
    args = words.parse_args()
    if os.geteuid() != 0 or not args.remora:
        raise SystemExit("needs root, and a remora (--remora)")
    report = Report()
    report.line(f"## {args.part}")
    report.line("")
    report.line(f"`bench/run {args.part} --seconds {args.seconds:.0f}`, {platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before.")
    report.line("")
    {"soak": soak, "faults": faults}[args.part](args, report)
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
    path.write_text(title + "\n".join(parts[name].rstrip("\n") + "\n" for name in ("soak", "faults") if name in parts))


if __name__ == "__main__":
    main()
