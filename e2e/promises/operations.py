"""What operators of a mesh do: restarts, rotations, several control planes, going away."""
import datetime
import json
import subprocess
import time

import cluster
from kit import *
from promises.load import Load
from promises.mesh import CART, plain
from promises.otel import CLASSIC


def served_certificate():
    """The serial number of the certificate the webhooks show just now."""
    address = get("service", "istiod", "istio-system")["spec"]["clusterIP"]
    shown = subprocess.run(cluster.inside("openssl", "s_client", "-connect", f"{address}:443"), input=b"",
                           capture_output=True).stdout
    serial = subprocess.run(["openssl", "x509", "-noout", "-serial"], input=shown, capture_output=True)
    return serial.stdout.decode().strip()


def lives(how):
    """Sets how long certificates live, or no longer does."""
    kubectl("-n", "istio-system", "set", "env", "deployment/istiod", f"MAX_WORKLOAD_CERT_TTL{how}")
    rolled_out("istiod", "istio-system")


def make_many():
    """A hundred pods and more, until the certificate has changed a few times. They need not run: a gate keeps them off."""
    seen, made, gate = set(), 0, [{"name": "remora.dev/never"}]
    while made < 100 or len(seen) < 4:
        seen.add(served_certificate())
        batch = [pod(f"many-{made + i}", "many", [SLEEPER], schedulingGates=gate) for i in range(10)]
        done = called("create", "-f", "-", text=documents(batch))
        assert done.returncode == 0, done.stderr
        made += len(batch)
    assert "" not in seen, "the certificate could not be read"
    print(f"      {made} pods, {len(seen)} certificates", flush=True)
    return made


@promise
def while_certificates_of_the_webhook_change_no_pod_is_refused():
    if not cluster.is_own():
        raise NotHere("the certificate cannot be seen from here")
    namespace("many", **{"istio-injection": "enabled"})
    lives("=4s")
    try:
        made = make_many()
    finally:
        lives("-")
    pods = json.loads(kubectl("-n", "many", "get", "pods", "-o", "json"))["items"]
    assert len(pods) == made and all("istio-proxy" in names(one) for one in pods)
    gone("many")


@promise
def of_two_control_planes_one_may_die_while_pods_are_made():
    kubectl("-n", "istio-system", "scale", "deployment/istiod", "--replicas=2")
    rolled_out("istiod", "istio-system")
    # Those that stay: the one of the last rollout may still be leaving.
    both = [one for one in listed("pods", "istio-system", "app=istiod,istio.io/rev=default")
            if "deletionTimestamp" not in one["metadata"]]
    assert len(both) == 2, [one["metadata"]["name"] for one in both]
    for turn, one in enumerate(both):
        kubectl("-n", "istio-system", "delete", "pod", one["metadata"]["name"], "--wait=false")
        apply(pod(f"survivor-{turn}", "shop", [SLEEPER], initContainers=[fetch("migrate", CART)]))
        ready(f"survivor-{turn}", "shop")
        rolled_out("istiod", "istio-system")
    kubectl("-n", "istio-system", "scale", "deployment/istiod", "--replicas=1")


def youngest(space, selector):
    """The age of the container that started last, in seconds."""
    statuses = [status for one in listed("pods", space, selector)
                for status in one["status"]["initContainerStatuses"] + one["status"]["containerStatuses"]]
    starts = [datetime.datetime.fromisoformat(status["state"]["running"]["startedAt"])
              for status in statuses if "running" in status["state"]]
    return (datetime.datetime.now(datetime.timezone.utc) - max(starts)).total_seconds()


@promise
def a_restart_of_the_kubelet_disturbs_nobody():
    if not cluster.is_own():
        raise NotHere("the kubelet cannot be reached")
    with Load("undisturbed", "--rate", 50):
        # k8s: a kubelet keeps a container ready over its restart only if the container started more than 10 seconds
        # before (kubeletRestartGracePeriod). Younger ones are not ready until their next probe, with or without a mesh.
        until("pods that a kubelet keeps ready", lambda: youngest("busy", "app=hello") > 15)
        cluster.restart("kubelet")
        until("the node", lambda: "True" in kubectl("get", "node", cluster.NODE, "-o", "jsonpath={.status.conditions[-1:].status}"))
        apply(pod("afterwards", "shop", [SLEEPER], initContainers=[fetch("migrate", CART)]))
        ready("afterwards", "shop")
    for one in listed("pods", "busy", "app=hello"):
        for status in one["status"]["initContainerStatuses"] + one["status"]["containerStatuses"]:
            assert status["restartCount"] == 0, status


@promise
def the_gate_of_a_native_sidecar_outlives_the_kubelet():
    if not cluster.is_own():
        raise NotHere("the kubelet cannot be reached")
    plain()
    apply(pod("gated", "shop", [SLEEPER], schedulingGates=[{"name": "remora.dev/test"}]))
    kubectl("-n", "istio-system", "scale", "deployment/istiod", "--replicas=0")
    try:
        until("the control plane to go", lambda: not listed("pods", "istio-system", "app=istiod,istio.io/rev=default"))
        kubectl("-n", "shop", "patch", "pod", "gated", "--type=json",
                "-p", '[{"op": "remove", "path": "/spec/schedulingGates"}]')
        until("the sidecar to run", lambda: "running" in state(get("pod", "gated", "shop"), "istio-proxy").get("state", {}))
        cluster.restart("kubelet")
        # It is back when it starts pods again.
        apply(pod("fresh", "plain", [SLEEPER]))
        ready("fresh", "plain")
        seen = time.monotonic()
        while time.monotonic() < seen + 5:
            waiting = state(get("pod", "gated", "shop"), "app")["state"]
            assert "waiting" in waiting, waiting
            time.sleep(0.5)
    finally:
        kubectl("-n", "istio-system", "scale", "deployment/istiod", "--replicas=1")
        rolled_out("istiod", "istio-system")
    ready("gated", "shop")


@promise
def a_mesh_that_is_uninstalled_leaves_nothing_but_pods_that_run():
    # Under this name it was put where Istio's is called.
    kubectl("delete", "mutatingwebhookconfiguration", CLASSIC, "--ignore-not-found")
    for revision in ["classic", "default"]:
        done = remora("uninstall", "--revision", revision, "--image", IMAGE)
        assert done.returncode == 0, done.stderr
        kubectl("delete", "--ignore-not-found", "-f", "-", text=done.stdout)
    until("the namespace to be gone", lambda: called("get", "namespace", "istio-system").returncode != 0)
    ours = ["--selector=app.kubernetes.io/part-of=remora", "-A", "-o", "name"]
    kinds = "clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts,configmaps,secrets,services," \
        "deployments,poddisruptionbudgets,mutatingwebhookconfigurations,validatingwebhookconfigurations"
    assert kubectl("get", kinds, *ours) == "", kubectl("get", kinds, *ours)
    copies = lambda: [line for line in kubectl("get", "configmaps", "-A", "-o", "name").split() if "istio-ca-root-cert" in line]
    until("the copies of the root certificate to be gone", lambda: not copies(), 30)
    # Nobody is asked about pods any more.
    apply(pod("free", "shop", [SLEEPER]))
    assert names(ready("free", "shop")) == []
