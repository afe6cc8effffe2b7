"""The model of start and stop against a real kubelet, with the real sidecar and capture: event by event.

Every scenario is a pod of actors that write down what happens to them. Starts and ends of containers come from
containerd, the rest from the actors themselves; `remora check --assume` must tell the same story.
"""
import concurrent.futures
import json
import os
import shutil
import subprocess
import threading
import time

import cluster
from kit import *

SCENARIOS = cluster.HERE / "scenarios"
# Things the model puts further apart than this must come in its order.
APART = 60
# A state that lasts no longer is a change between two others: two targets are looked at, each on its own.
PASSING = 1300
# The mesh reached and the outside not is no state of a pod's network but a target that is slow to answer: one look may
# take two seconds before it gives up.
SLOW = 3000
TARGET = ["actor", "--as", "target", "--journal", "/tmp", "--banner", "8080"]


class Witness:
    """What containerd sees: when containers start and end, by the names of their pods and containers."""

    def __init__(self):
        self.events, self.names = [], {}
        words = cluster.inside(cluster.BIN / "ctr", "-n", "k8s.io", "events")
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            day, clock, *_, topic, body = line.split(" ", 6)
            about = json.loads(body)
            if topic == "/containers/create":
                self.learn(about["id"])
            elif topic in ("/tasks/start", "/tasks/exit") and about.get("id", about["container_id"]) == about["container_id"]:
                seconds = time.mktime(time.strptime(f"{day} {clock[:8]}", "%Y-%m-%d %H:%M:%S")) - time.timezone
                at = seconds * 1000 + float("0" + clock[8:]) * 1000
                self.events.append((at, about["container_id"], topic.rsplit("/", 1)[1]))

    def learn(self, container):
        """Its labels, before it is gone."""
        words = cluster.inside(cluster.BIN / "ctr", "-n", "k8s.io", "containers", "info", container)
        labels = json.loads(subprocess.run(words, capture_output=True, text=True).stdout or "{}").get("Labels", {})
        if "io.kubernetes.container.name" in labels:
            self.names[container] = (labels["io.kubernetes.pod.name"], labels["io.kubernetes.container.name"])

    def of(self, name):
        """Events of a pod, named as the model names them."""
        seen, starts, out = {}, {}, []
        for at, container, what in sorted(self.events):
            owner, part = self.names.get(container, (None, None))
            if owner != name:
                continue
            if container not in seen:
                starts[part] = starts.get(part, 0) + 1
                seen[container] = part if starts[part] == 1 else f"{part}#{starts[part]}"
            out.append((at, f"{seen[container]}.start" if what == "start" else f"ctr:{seen[container]}.exit"))
        return out

    def close(self):
        self.process.kill()


class Play:
    """One scenario on the cluster."""

    def __init__(self, folder, addresses):
        self.name, self.folder = folder.name, folder
        text = (folder / "pod.json").read_text().replace('"IMAGE"', json.dumps(IMAGE))
        for word, address in addresses.items():
            text = text.replace(f"{word}:8080", f"{address}:8080")
        self.pod = json.loads(text)
        self.assumed = json.loads((folder / "assume.json").read_text())
        self.journal = cluster.DATA / f"var/lib/stage/{self.name}"
        shutil.rmtree(self.journal, ignore_errors=True)
        self.journal.mkdir(parents=True)
        self.journal.chmod(0o777)

    def lines(self):
        file = self.journal / "events"
        return [line.split(" ", 3) for line in file.read_text().splitlines()] if file.exists() else []

    def perform(self, witness):
        """From its creation to its end."""
        self.began = time.time() * 1000
        kubectl("create", "-f", "-", text=json.dumps(self.pod))
        self.admitted = get("pod", self.name, "stage")
        for step in self.assumed.get("do", []):
            until(f"{step['on']} of {self.name}", lambda: any(e == step["on"] for _, e in witness.of(self.name)))
            time.sleep(float(step["after"].removesuffix("s")))
            kubectl("-n", "stage", "delete", "pod", self.name, f"--grace-period={step['grace']}", "--wait=false")
        over = lambda: called("-n", "stage", "get", "pod", self.name, "-o", "jsonpath={.status.phase}").stdout
        until(f"{self.name} to end", lambda: over() in ("", "Succeeded", "Failed"))
        exits = lambda: [e for _, e in witness.of(self.name) if e == "ctr:istio-proxy.exit"]
        until(f"the proxy of {self.name} to end", exits)

    def recording(self, witness):
        events = witness.of(self.name)
        own = [(int(at) / 1e6, f"{actor}{'' if n == '1' else '#' + n}", what) for at, actor, n, what in self.lines()]
        events += [(at, f"{actor}.{what}") for at, actor, what in own if what == "sigterm"]
        end = max(at for at, _ in events)
        network = {}
        for actor in {actor for _, actor, what in own if what.startswith("net=")}:
            changes = [(at, *what[4:].split(" ")) for at, who, what in own if who == actor and what.startswith("net=")]
            over = next((at for at, who, what in own if who == actor and what == "exit"), end)
            network[actor] = states(changes, over)
        return {"events": [{"at": round(at - self.began), "event": e} for at, e in sorted(events)],
                "network": {actor: network[actor] for actor in sorted(network)}}


def states(changes, end):
    """What two targets together say about the network, without what passes."""
    now, seen = {}, []
    for at, target, word in changes:
        now[target] = word == "direct"
        if len(now) == 2:
            reached = (now["plain"], now["strict"])
            seen.append((at, {(True, True): "proxied", (True, False): "direct", (False, False): "broken"}.get(reached, "?")))
    out = []
    for (at, state), (after, _) in zip(seen, seen[1:] + [(end, None)]):
        lasting = after - at >= (SLOW if state == "?" else PASSING)
        if lasting and (not out or out[-1] != state):
            out.append(state)
    return out


def predicted(play):
    """What the model says about the pod that was admitted."""
    pod = json.loads(json.dumps(play.admitted))
    pod.pop("status", None)
    assumptions = cluster.DATA / f"{play.name}.json"
    assumptions.write_text(json.dumps(play.assumed))
    done = remora("check", "-f", "-", "--assume", str(assumptions), "--format", "json", text=json.dumps(pod))
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)["pods"][0]["simulation"]


def disagreements(model, recording):
    """Where the two stories differ."""
    seen = {}
    for event in recording["events"]:
        seen.setdefault(event["event"], event["at"])
    foretold = {}
    for event in model["events"]:
        foretold.setdefault(event["event"], event["at"])
    kinds = (".start", ".sigterm", ".exit")
    known = [e for e in foretold if e.endswith(kinds) and (e.startswith("ctr:") or not e.endswith(".exit")) and "/" not in e]
    # The proxy is no actor: that it was signalled is not seen.
    known = [e for e in known if not e.startswith("istio-") or e in seen]
    wrong = [f"{e} did not happen" for e in known if e not in seen]
    wrong += [f"{e} happened" for e in seen if e not in foretold]
    for a in known:
        for b in known:
            if a in seen and b in seen and foretold[a] + APART < foretold[b] and seen[a] >= seen[b]:
                wrong.append(f"{a} at {seen[a]} came after {b} at {seen[b]}")
    for process in model["network"]:
        expected = [s["state"] for s in process["states"]]
        met = recording["network"].get(process["process"])
        if met is not None and met != expected:
            wrong.append(f"{process['process']} met {met}, the model says {expected}")
    return wrong


def told(recording):
    """A recording as text, one event a line."""
    events = ",\n".join("  " + json.dumps(event) for event in recording["events"])
    return f'{{"events": [\n{events}],\n "network": {json.dumps(recording["network"])}}}\n'


def stage():
    """Two to call: one outside the mesh, one that takes nothing but mutual TLS."""
    namespace("outside")
    namespace("stage", **{"istio-injection": "enabled"})
    define((cluster.HERE / "crds.yaml").read_text())
    apply({"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
           "metadata": {"name": "default", "namespace": "stage"}, "spec": {"mtls": {"mode": "STRICT"}}},
          pod("plain", "outside", [demo("target", *TARGET)]), pod("strict", "stage", [demo("target", *TARGET)]))
    return {"PLAIN": ready("plain", "outside")["status"]["podIP"], "STRICT": ready("strict", "stage")["status"]["podIP"]}


@promise
def the_model_tells_what_a_kubelet_does_event_by_event():
    if not cluster.is_own():
        raise NotHere("containerd cannot be watched")
    addresses = stage()
    plays = [Play(folder, addresses) for folder in sorted(p for p in SCENARIOS.iterdir() if p.is_dir())]
    witness, wrong, events = Witness(), [], 0
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as stages:
            list(stages.map(lambda play: play.perform(witness), plays))
        for play in plays:
            recording = play.recording(witness)
            events += len(recording["events"])
            differs = disagreements(predicted(play), recording)
            if differs:
                wrong += [f"{play.name}: {what}" for what in differs] + [" ".join(line) for line in play.lines()]
            if os.environ.get("REMORA_E2E_RECORD"):
                (play.folder / "recording.json").write_text(told(recording))
    finally:
        witness.close()
    assert not wrong, "\n".join(wrong)
    print(f"      {len(plays)} pods, {events} events", flush=True)
