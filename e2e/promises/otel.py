"""Two injectors want the same pod: the mesh and the OpenTelemetry operator, the real one.

An agent that is fetched needs network while it is copied. Behind Istio's istio-init it has none; what people do against
that, and what remora does, is tried with real pods. What `remora check` says about each pod must come true.
"""
import json

import cluster
import kit
from kit import *

AGENT = "opentelemetry-auto-instrumentation-python"
OPERATOR = "opentelemetry-operator-system"
# As the operator's own installation names it, and so that the API server calls it after everybody else.
EARLY, LATE = "opentelemetry-operator-mutating-webhook-configuration", "zzz-opentelemetry"
CLASSIC = "istio-sidecar-injector-classic"
ARTIFACTS = "http://artifacts.tools:8081/agent"
FETCHED, PACKED = "localhost/agent-fetched:1", "localhost/agent-packed:1"
PYTHON = "instrumentation.opentelemetry.io/inject-python"


def images():
    """Two images as vendors make them; the operator runs `cp` in them. One has to fetch its agent first."""
    shell = ["sh", "echo", "mkdir"]
    fetching = f'#!/bin/sh\n/bin/remora wait --url {ARTIFACTS} --timeoutSeconds 3 && echo fetched > "$3/agent"\n'
    packed = '#!/bin/sh\necho packed > "$3/agent"\n'
    for name, script in [(FETCHED, fetching), (PACKED, packed)]:
        cluster.load(cluster.image(name, ["/bin/sh"], shell, {"bin/remora": kit.BINARY, "bin/cp": script}))


def operator():
    """The operator, as its manifests install it; certificates come from the cluster's own authority."""
    name, host = "localhost/opentelemetry-operator:1", f"operator.{OPERATOR}.svc"
    program = cluster.tools("operator")
    cluster.load(cluster.image(name, ["/bin/manager"], [], {"bin/manager": program / "opentelemetry-operator"}))
    for definition in sorted((program / "crds").glob("*.yaml")):
        define(definition.read_text())
    namespace(OPERATOR)
    bundle, certificate, key = cluster.serving(host)
    account = {"kind": "ServiceAccount", "name": "default", "namespace": OPERATOR}
    container = {"name": "manager", "image": name, "args": ["--metrics-addr=127.0.0.1:8080", "--enable-leader-election=false"],
                 "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8081}, "periodSeconds": 1},
                 "volumeMounts": [{"name": "certificate", "mountPath": "/tmp/k8s-webhook-server/serving-certs"}]}
    apply({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": OPERATOR},
           "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
           "subjects": [account]},
          {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "certificate", "namespace": OPERATOR},
           "type": "kubernetes.io/tls", "stringData": {"tls.crt": certificate, "tls.key": key}},
          service("operator", OPERATOR, 443, 9443),
          deployment("operator", OPERATOR, [container],
                     volumes=[{"name": "certificate", "secret": {"secretName": "certificate"}}]))
    rolled_out("operator", OPERATOR)
    return bundle


def called_as(name):
    """Makes the API server call the operator under this name only, or not at all: names decide who is called first."""
    bundle = prepare()
    hook = {"name": "mpod.kb.io", "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"caBundle": bundle,
                             "service": {"name": "operator", "namespace": OPERATOR, "path": "/mutate-v1-pod"}},
            "namespaceSelector": {"matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["classic", "cni", "both"]}]},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]}
    for other in {EARLY, LATE, "a-opentelemetry"} - {name}:
        kubectl("delete", "mutatingwebhookconfiguration", other, "--ignore-not-found")
    if name is None:
        return
    apply({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
           "metadata": {"name": name}, "webhooks": [hook]})


def classic():
    """An injector that does what Istio's does, called where Istio's is called: once, before the operator."""
    done = remora("install", "--revision", "classic", "--image", IMAGE, "--image-pull-policy", "Never", "--replicas", "1",
                  "--set", "remora.order=istio", "--set", "remora.injectors=[mesh]",
                  "--set", "pilot.env.ENABLE_NATIVE_SIDECARS=false")
    assert done.returncode == 0, done.stderr
    text = done.stdout.replace("zz-remora-sidecar-injector-classic", CLASSIC)
    MADE.append(("MutatingWebhookConfiguration", CLASSIC))
    kubectl("apply", "-f", "-", text=text.replace("reinvocationPolicy: IfNeeded", "reinvocationPolicy: Never"))
    rolled_out("istiod-classic", "istio-system")


@once
def prepare():
    """The operator, an injector like Istio's, and namespaces for both; what the operator's certificate is checked with."""
    images()
    namespace("tools")
    apply(service("artifacts", "tools", 8081),
          deployment("artifacts", "tools", [demo("artifacts", "hello", "--port", 8081, **served(8081))]))
    bundle = operator()
    classic()
    rolled_out("artifacts", "tools")
    space("classic", **{"istio.io/rev": "classic"})
    space("cni", **{"istio.io/rev": "classic"})
    space("both", **{"istio-injection": "enabled"})
    return bundle


def space(name, **labels):
    """A namespace in which Python is instrumented with an agent that is fetched, or with one that is packed."""
    namespace(name, **labels)
    for kind, image in [("fetched", FETCHED), ("packed", PACKED)]:
        apply({"apiVersion": "opentelemetry.io/v1alpha1", "kind": "Instrumentation",
               "metadata": {"name": kind, "namespace": name}, "spec": {"python": {"image": image}}})


def instrumented(name, where, agent="fetched", **annotations):
    """A pod whose application needs network the moment it starts."""
    app = demo("app", "call", ARTIFACTS, "--tries", 1, "--hold", 100000)
    return pod(name, where, [app], metadata={"annotations": {PYTHON: agent, **annotations}})


def verdict(found):
    """What `remora check` says: whether the pod starts, and its words."""
    for field in ["managedFields", "uid", "resourceVersion"]:
        found["metadata"].pop(field, None)
    done = remora("check", "-f", "-", "--format", "json", text=json.dumps(found))
    return done.returncode == 0, done.stdout


def created(one):
    """The pod, once the operator has seen it: its webhook may be unknown to the API server for a moment."""
    name, where = one["metadata"]["name"], one["metadata"]["namespace"]

    until(f"{name} to be instrumented", lambda: AGENT in names(dry(one)))
    apply(one)
    return get("pod", name, where)


def works(one, order, restarts=0):
    found = created(one)
    assert names(found) == order, names(found)
    good, words = verdict(found)
    assert good, words
    name, where = one["metadata"]["name"], one["metadata"]["namespace"]
    found = ready(name, where)
    assert state(found, "app")["restartCount"] == restarts, found["status"]
    variables = {c["name"]: [e["name"] for e in c.get("env", [])] for c in found["spec"]["containers"]}
    assert "PYTHONPATH" in variables["app"], variables
    kubectl("-n", where, "delete", "pod", name, "--wait=false")


def fails(one, order):
    found = created(one)
    assert names(found) == order, names(found)
    good, words = verdict(found)
    assert not good and AGENT in words, words
    name, where = one["metadata"]["name"], one["metadata"]["namespace"]

    def stuck():
        status = state(get("pod", name, where), AGENT)
        return status.get("restartCount", 0) >= 1 and "terminated" in status.get("lastState", {})
    until("the agent's container to fail", stuck)
    assert not is_ready(get("pod", name, where))
    kubectl("-n", where, "delete", "pod", name, "--wait=false")


# Without the second one the operator instruments the first container, which is then the proxy.
HOLD = {"proxy.istio.io/config": '{"holdApplicationUntilProxyStarts": true}',
        "instrumentation.opentelemetry.io/container-names": "app"}
BEHIND = ["istio-init", AGENT]
# The operator's command is `cp`: that this one needs network cannot be seen, so the pod says it.
DECLARED = {f"remora.dev/network.{AGENT}": "mesh"}


@promise
def an_agent_that_is_fetched_fails_behind_istio_init_as_predicted():
    called_as(EARLY)
    fails(instrumented("fetched", "classic", **DECLARED), BEHIND)


@promise
def fix_1_holding_the_application_helps_it_but_not_its_init_containers():
    called_as(EARLY)
    fails(instrumented("held", "classic", **HOLD, **DECLARED), BEHIND)
    # And without a name the agent would land in the proxy, which is the first container now.
    unnamed = dry(instrumented("unnamed", "classic", **{k: v for k, v in HOLD.items() if "names" not in k}))
    assert [c["name"] for c in unnamed["spec"]["containers"] if "PYTHONPATH" in str(c.get("env"))] == ["istio-proxy"]
    works(instrumented("held-packed", "classic", "packed", **HOLD), BEHIND)


@promise
def fix_2_excluding_a_port_or_a_range_from_capture_gives_the_agent_its_network():
    called_as(EARLY)
    works(instrumented("port", "classic", **HOLD, **{"traffic.sidecar.istio.io/excludeOutboundPorts": "8081"}), BEHIND)
    address = get("service", "artifacts", "tools")["spec"]["clusterIP"]
    ranges = {"traffic.sidecar.istio.io/excludeOutboundIPRanges": f"{address}/32"}
    works(instrumented("range", "classic", **HOLD, **ranges), BEHIND)


def values(revision, changes):
    """Lays values over those of a control plane, and gives back what there was."""
    name = f"istio-sidecar-injector{revision}"
    before = json.loads(get("configmap", name, "istio-system")["data"]["values"])
    change = {"data": {"values": json.dumps({**before, **changes})}}
    kubectl("-n", "istio-system", "patch", "configmap", name, "-p", json.dumps(change))
    return before


def dry(one):
    """The pod as it would be."""
    return json.loads(kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", text=json.dumps(one)))


@promise
def fix_3_a_cni_plugin_alone_makes_it_worse_and_with_a_native_sidecar_it_works():
    if not cluster.is_own():
        raise NotHere("the node's network cannot be changed")
    called_as(EARLY)
    before = values("-classic", {"pilot": {"cni": {"enabled": True}, "env": {"ENABLE_NATIVE_SIDECARS": False}}})
    try:
        one = instrumented("fetched", "cni", **HOLD, **DECLARED)
        until("the values to be in force", lambda: "istio-validation" in names(dry(one)))
        fails(one, ["istio-validation", AGENT])
        native = {"sidecar.istio.io/nativeSidecar": "true", **DECLARED}
        works(instrumented("native", "cni", **native), ["istio-validation", "istio-proxy", AGENT])
    finally:
        values("-classic", before)


@promise
def fix_4_an_agent_that_is_packed_needs_no_network():
    called_as(EARLY)
    works(instrumented("packed", "classic", "packed", **HOLD), BEHIND)


@promise
def fix_5_before_istio_init_the_agent_has_network():
    called_as("a-opentelemetry")
    works(instrumented("first", "classic", **HOLD), [AGENT, "istio-init"])


def both(who):
    """With remora the agent is fetched through the mesh, whoever is called first."""
    order = ["istio-init", "istio-proxy", AGENT]
    for place, name in [("before", EARLY), ("after", LATE)]:
        called_as(name)
        works(instrumented(f"{who}-{place}", "both"), order)


@promise
def with_remora_it_works_whether_the_operator_is_called_before_or_after():
    both("together")


@promise
def with_remora_it_works_also_when_only_the_operator_instruments():
    before = values("", {"remora": {"injectors": ["mesh"]}})
    try:
        called_as(None)
        until("the values to be in force", lambda: AGENT not in names(dry(instrumented("probe", "both"))))
        both("alone")
    finally:
        values("", {"remora": None, **before})
