"""What the promises are made of: a cluster to talk to, objects, and waiting for things to become so."""
import functools
import json
import os
import pathlib
import shutil
import subprocess
import time

import cluster

IMAGE = os.environ.get("REMORA_E2E_IMAGE", "localhost/remora:e2e")
BUSYBOX = os.environ.get("REMORA_E2E_BUSYBOX", "localhost/busybox:1")
PATIENCE = 120
# The binary under test; `run` sets it.
BINARY = pathlib.Path("remora")
PROMISES = []
# Words that take away what was made for the whole cluster.
MADE = []


def promise(function):
    """Something remora promises: called in the order in which they stand."""
    PROMISES.append(function)
    return function


def once(function):
    """What several promises need: whoever asks first makes it, so that each promise can be kept alone."""
    made = []

    @functools.wraps(function)
    def make():
        if not made:
            made.append(function())
        return made[0]
    return make


class NotHere(Exception):
    """This cluster cannot show it."""


def called(*words, text=None, seconds=PATIENCE):
    return subprocess.run(cluster.kubectl(*words), input=text, capture_output=True, text=True, timeout=seconds)


def kubectl(*words, text=None):
    done = called(*words, text=text)
    if done.returncode != 0:
        raise AssertionError(f"kubectl {' '.join(map(str, words))}: {done.stderr or done.stdout}")
    return done.stdout


def remora(*words, text=None):
    return subprocess.run([BINARY, *words], input=text, capture_output=True, text=True, timeout=PATIENCE)


def asking(*words):
    """remora in front of the cluster, as an operator would use it."""
    if cluster.is_own():
        command = cluster.inside(cluster.DATA / "remora", *words, "--kubeconfig", cluster.DATA / "admin.kubeconfig")
    else:
        command = [BINARY, *words, "--kubeconfig", cluster.OTHER]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


def documents(objects):
    return "\n---\n".join(json.dumps(o) for o in objects)


def apply(*objects):
    for one in objects:
        if one["kind"] in ("Namespace", "ClusterRoleBinding", "MutatingWebhookConfiguration"):
            MADE.append((one["kind"], one["metadata"]["name"]))
    return kubectl("apply", "-f", "-", text=documents(objects))


def define(text):
    """Makes kinds known to the cluster."""
    said = kubectl("apply", "--server-side", "-f", "-", text=text)
    MADE.extend(("CustomResourceDefinition", line.split()[0].split("/")[1]) for line in said.splitlines())


def tidy():
    """Takes away what somebody else's cluster should not keep."""
    for revision in ["classic", "default"]:
        done = remora("uninstall", "--revision", revision, "--image", IMAGE)
        called("delete", "--ignore-not-found", "--wait=false", "-f", "-", text=done.stdout)
    for kind, name in dict.fromkeys(reversed(MADE)):
        called("delete", kind, name, "--ignore-not-found", "--wait=false")


def get(kind, name, space=None):
    place = ["-n", space] if space else []
    return json.loads(kubectl(*place, "get", kind, name, "-o", "json"))


def listed(kind, space, selector):
    return json.loads(kubectl("-n", space, "get", kind, "-l", selector, "-o", "json"))["items"]


def until(what, condition, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.2)
    raise AssertionError(f"gave up waiting for {what}")


# Objects ------------------------------------------------------------------------------------------------------------

def namespace(name, **labels):
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    until("the service account", lambda: "default" in kubectl("-n", name, "get", "serviceaccounts", "-o", "name"))


def pod(name, space, containers, **spec):
    metadata = spec.pop("metadata", {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": space, **metadata},
            "spec": {"terminationGracePeriodSeconds": 5, "containers": containers, **spec}}


def service(name, space, port, target=None):
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": space},
            "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": port, "targetPort": target or port}]}}


def deployment(name, space, containers, replicas=1, **more):
    strategy = more.pop("strategy", None)
    annotations = more.pop("annotations", {})
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}, "annotations": annotations},
                         "spec": {"containers": containers, **more}}}
    if strategy:
        spec["strategy"] = strategy
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": space}, "spec": spec}


def fetch(name, url, seconds=20):
    """A container that ends well when the address answers."""
    return {"name": name, "image": IMAGE, "args": ["wait", "--url", url, "--timeoutSeconds", str(seconds)]}


def demo(name, *words, **more):
    """A container that plays a part of `remora demo`."""
    return {"name": name, "image": IMAGE, "args": ["demo", *map(str, words)], **more}


def served(port):
    return {"ports": [{"containerPort": port}],
            "readinessProbe": {"httpGet": {"path": "/health", "port": port}, "periodSeconds": 1}}


SLEEPER = {"name": "app", "image": BUSYBOX, "command": ["sleep", "100000"]}


# What became of them ------------------------------------------------------------------------------------------------

def is_ready(found):
    conditions = found["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def ready(name, space, seconds=PATIENCE):
    until(f"pod {space}/{name} to be ready", lambda: is_ready(get("pod", name, space)), seconds)
    return get("pod", name, space)


def ended(name, space):
    """The phase in which a pod came to its end."""
    phase = lambda: get("pod", name, space)["status"].get("phase")
    until(f"pod {space}/{name} to end", lambda: phase() in ("Succeeded", "Failed"))
    return phase()


def rolled_out(name, space):
    kubectl("-n", space, "rollout", "status", f"deployment/{name}", f"--timeout={PATIENCE - 10}s")


def names(found, kind="initContainers"):
    return [c["name"] for c in found["spec"].get(kind, [])]


def state(found, container):
    """The status of a container."""
    status = found["status"]
    every = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
    return next((s for s in every if s["name"] == container), {})


def gone(space):
    """Ends a namespace without waiting for it."""
    called("delete", "namespace", space, "--wait=false")


def install():
    """Installs remora as a user would."""
    archive = cluster.DATA / "remora.tar"
    cluster.run(BINARY, "image", "--name", IMAGE, "--output", archive)
    cluster.load(archive)
    # For the node itself.
    shutil.copy(BINARY, cluster.DATA / "remora")
    done = remora("install", "--image", IMAGE, "--image-pull-policy", "IfNotPresent", "--replicas", "1")
    assert done.returncode == 0, done.stderr
    if "deployment.apps/istiod unchanged" in kubectl("apply", "-f", "-", text=done.stdout):
        # The image may be another one under the same name.
        kubectl("-n", "istio-system", "rollout", "restart", "deployment/istiod")
    rolled_out("istiod", "istio-system")
