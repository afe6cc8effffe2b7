"""Nothing is lost while things change: rolling updates, deletions, a control plane that dies."""
import json
import time

from kit import *

HELLO = "http://hello.busy:8080/"
GENTLE = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
# Whoever ends at once at SIGTERM resets what waits to be accepted, mesh or not. While it lingers the sidecar already
# sends new callers elsewhere.
LINGER = {"preStop": {"sleep": {"seconds": 1}}}


def hello(name, *words, replicas=2, **more):
    container = demo("hello", "hello", "--port", 8080, *words, **served(8080), lifecycle=LINGER)
    container["readinessProbe"]["timeoutSeconds"] = 10
    return deployment(name, "busy", [container], replicas, strategy=GENTLE, **more)


@once
def busy():
    """A service that is called all the time."""
    namespace("busy", **{"istio-injection": "enabled"})
    apply(service("hello", "busy", 8080), hello("hello"))
    rolled_out("hello", "busy")


class Load:
    """Calls all the time while something happens; nothing may fail."""

    def __init__(self, name, *words, url=HELLO):
        busy()
        self.name = name
        apply(pod(name, "busy", [demo("load", "load", url, *words)], terminationGracePeriodSeconds=1))

    def said(self):
        return kubectl("-n", "busy", "logs", self.name, "-c", "load").splitlines()

    def tally(self):
        lines = [line for line in self.said() if '"answered"' in line]
        return json.loads(lines[-1][lines[-1].index("{"):]) if lines else {"answered": 0, "failed": 0}

    def __enter__(self):
        ready(self.name, "busy")
        until("the first answers", lambda: self.tally()["answered"] > 20)
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.judge()
        finally:
            called("-n", "busy", "delete", "pod", self.name)

    def judge(self):
        seen = self.tally()["answered"]
        # What was under way is part of it.
        until("some more answers", lambda: self.tally()["answered"] > seen + 100)
        end = self.tally()
        wrong = [line for line in self.said() if "failed after" in line]
        assert end["failed"] == 0, (end, wrong[:10])
        print(f"      {end['answered']} requests, none failed, slowest {end['slowest_ms']} ms", flush=True)


@promise
def a_rolling_update_under_load_loses_no_request():
    with Load("rolling", "--rate", 100):
        for turn in range(2):
            apply(hello("hello", annotations={"turn": str(turn)}))
            rolled_out("hello", "busy")


@promise
def a_pod_that_is_deleted_answers_what_it_was_asked():
    busy()
    apply(service("slow", "busy", 8080), hello("slow", "--think", 3))
    rolled_out("slow", "busy")
    with Load("flying", "--rate", 20, "--workers", 80, url="http://slow.busy:8080/"):
        for one in listed("pods", "busy", "app=slow"):
            kubectl("-n", "busy", "delete", "pod", one["metadata"]["name"])
            rolled_out("slow", "busy")


@promise
def without_a_control_plane_traffic_goes_on_and_new_pods_wait():
    # Admitted while there is a control plane, started when there is none.
    busy()
    gate = [{"name": "remora.dev/test"}]
    app = demo("app", "call", HELLO, "--tries", 1, "--hold", 100000)
    apply(pod("admitted", "busy", [app], schedulingGates=gate))
    with Load("orphaned", "--rate", 100):
        kubectl("-n", "istio-system", "scale", "deployment/istiod", "--replicas=0")
        try:
            for one in listed("pods", "istio-system", "app=istiod,istio.io/rev=default"):
                called("-n", "istio-system", "delete", "pod", one["metadata"]["name"], "--grace-period=0", "--force")
            orphaned()
        finally:
            kubectl("-n", "istio-system", "scale", "deployment/istiod", "--replicas=1")
            rolled_out("istiod", "istio-system")
        found = ready("admitted", "busy")
        assert state(found, "app")["restartCount"] == 0, "its first call went through the mesh"
        rolled_out("hello", "busy")


def orphaned():
    """Without a control plane nobody is admitted, and whoever was does not start."""
    dry = lambda: called("create", "--dry-run=server", "-f", "-", text=json.dumps(pod("late", "busy", [SLEEPER])))
    until("pods to be refused", lambda: "sidecar-injector" in dry().stderr)
    kubectl("-n", "busy", "patch", "pod", "admitted", "--type=json",
            "-p", '[{"op": "remove", "path": "/spec/schedulingGates"}]')
    until("the sidecar to run", lambda: "running" in state(get("pod", "admitted", "busy"), "istio-proxy").get("state", {}))
    kubectl("-n", "busy", "scale", "deployment/hello", "--replicas=3")
    seen = time.monotonic()
    while time.monotonic() < seen + 5:
        waiting = state(get("pod", "admitted", "busy"), "app")["state"]
        assert "waiting" in waiting, waiting
        time.sleep(0.5)
