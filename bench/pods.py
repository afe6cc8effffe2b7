#!/usr/bin/env python3
"""Measures `remora run`: how fast pods start, what the mesh adds to that, and what fifty of them take. See README.md.

    bench/run pods [--rounds 7] [--pods 50] [--remora PATH] [--out DIRECTORY]
"""

import argparse
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOOKINFO = ROOT / "examples/bookinfo/bookinfo.yaml"
# An idle sidecar gives back what only its start needed; then memory is looked at.
REST = 5
MANY = """
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec:
  selector: {{app: web}}
  ports: [{{port: 80, targetPort: 8080}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: shop}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      containers:
      - name: web
        image: remora
        args: [demo, hello, --port, '8080']
        readinessProbe: {{httpGet: {{path: /, port: 8080}}, periodSeconds: 1}}
"""


class Run:
    """A run of manifests, until this is left."""

    def __init__(self, remora, place, manifest, inject):
        self.command = [remora, "run", "-f", str(manifest), "--inject", inject, "--plain",
                        "--state-dir", f"{place}/state", "--image-store", f"{place}/images"]

    def __enter__(self):
        self.began = time.monotonic()
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True)
        return self

    def ready(self):
        """Seconds from the command to the moment when everything is ready."""
        said = []
        for line in self.process.stderr:
            said.append(line)
            if "everything is ready" in line:
                return time.monotonic() - self.began
        raise SystemExit("it ended before everything was ready:\n" + "".join(said))

    def sidecars(self):
        return [pid for pid in self.processes() if b"proxy\0sidecar" in pid.joinpath("cmdline").read_bytes()]

    def processes(self):
        """Its children: those of containers are made by the runner itself."""
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                parent = process.joinpath("stat").read_text().rsplit(") ", 1)[1].split()[1]
            except OSError:
                continue
            if parent == str(self.process.pid):
                yield process

    def cpu(self):
        """Seconds the runner itself has used."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        # Nobody reads what it says while it stops, and it must not wait for that.
        self.process.communicate()


def memory(process):
    """MiB of a process: its own, and its share of what it has in common with others."""
    for line in pathlib.Path(process, "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def start_times(remora, place, manifest, rounds):
    """Medians with and without the mesh, taken in turns."""
    times = {"always": [], "never": []}
    for _ in range(rounds):
        for inject, list_ in times.items():
            with Run(remora, place, manifest, inject) as run:
                list_.append(run.ready())
    return times


def row(name, seconds):
    median, least, most = statistics.median(seconds), min(seconds), max(seconds)
    return f"| {name} | {median:.2f} | {least:.2f} | {most:.2f} |"


def many(remora, place, pods):
    manifest = pathlib.Path(place, "many.yaml")
    manifest.write_text(MANY.format(replicas=pods))
    rows = []
    for inject, name in (("never", "without sidecars"), ("always", "with sidecars")):
        with Run(remora, place, manifest, inject) as run:
            seconds = run.ready()
            time.sleep(REST)
            cpu, runner = run.cpu(), memory(f"/proc/{run.process.pid}")
            each = [memory(p) for p in run.sidecars()]
            sidecar = f"{statistics.median(each):.1f}" if each else "-"
            rows.append(f"| {name} | {seconds:.2f} | {sidecar} | {runner / pods:.2f} | {cpu:.1f} |")
    return rows


def report(args, place):
    one = pathlib.Path(place, "one.yaml")
    one.write_text(MANY.format(replicas=1))
    lines = ["# Pods on one machine", "",
             f"`remora run`, {platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before. Seconds from the",
             f"command to everything ready; {args.rounds} rounds, with and without the mesh in turns.", "",
             "| | median | least | most |", "|---|---|---|---|"]
    for name, manifest in (("one pod", one), ("bookinfo, six pods", BOOKINFO)):
        times = start_times(args.remora, place, manifest, args.rounds)
        added = [w - o for w, o in zip(times["always"], times["never"])]
        lines += [row(name, times["always"]), row(f"{name}, without the mesh", times["never"]),
                  row("added by the mesh", added)]
    lines += ["", f"## {args.pods} pods at once", "",
              f"Memory is what a process has of its own and its share of the rest (PSS), {REST} s after everything was ready.", "",
              "| | all ready (s) | a sidecar (MiB) | the runner, for each pod (MiB) | CPU of the runner (s) |",
              "|---|---|---|---|---|", *many(args.remora, place, args.pods)]
    return "\n".join(lines) + "\n"


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--rounds", type=int, default=7)
    words.add_argument("--pods", type=int, default=50)
    words.add_argument("--remora", default=shutil.which("remora"))
    words.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results")
    args = words.parse_args()
    with tempfile.TemporaryDirectory() as place:
        text = report(args, place)
    print(text)
    (args.out / "pods.md").write_text(text)


main()
