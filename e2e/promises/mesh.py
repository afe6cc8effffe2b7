"""What a mesh is there for: pods are injected, talk over mutual TLS, and start in the right order."""
import json

import cluster
from kit import *

SERVER = {"name": "cart", "image": BUSYBOX, "ports": [{"containerPort": 8080}],
          "command": ["sh", "-c", "echo hello > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"],
          "readinessProbe": {"httpGet": {"path": "/index.html", "port": 8080}, "periodSeconds": 1}}
CART = "http://cart.shop/index.html"


def shop():
    """A service every promise may call."""
    namespace("shop", **{"istio-injection": "enabled"})
    apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "cart", "namespace": "shop"}},
          service("cart", "shop", 80, 8080),
          deployment("cart", "shop", [SERVER], 2, serviceAccountName="cart", terminationGracePeriodSeconds=5))
    rolled_out("cart", "shop")


@once
def plain():
    """A namespace outside the mesh."""
    namespace("plain")


@once
def early():
    """A pod whose init container calls the shop."""
    apply(pod("early", "shop", [SLEEPER], initContainers=[fetch("migrate", CART)]))
    ready("early", "shop")


def broken(space):
    """A pod in the wrong order, as another webhook leaves it that does not let ours mend it."""
    capture = {"name": "istio-init", "image": IMAGE,
               "args": ["istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337", "-i", "*", "-b", "*"],
               "securityContext": {"runAsUser": 0, "capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}}}
    sidecar = {"name": "istio-proxy", "image": IMAGE, "args": ["proxy", "sidecar"]}
    # The image's own user is the proxy's, which is not captured.
    migrate = {**fetch("migrate", CART, 2), "securityContext": {"runAsUser": 1000}}
    return pod("broken", space, [SLEEPER, sidecar], initContainers=[capture, migrate],
               metadata={"annotations": {"sidecar.istio.io/inject": "false"}})


@promise
def labelled_namespaces_are_injected_with_a_native_sidecar():
    pods = listed("pods", "shop", "app=cart")
    assert len(pods) == 2, pods
    for one in pods:
        assert names(one) == ["istio-init", "istio-proxy"], names(one)
        assert one["spec"]["initContainers"][1]["restartPolicy"] == "Always"


@promise
def other_namespaces_are_left_alone():
    plain()
    apply(pod("alone", "plain", [SLEEPER]))
    found = ready("alone", "plain")
    assert names(found, "containers") == ["app"] and names(found) == [], found["spec"]


@promise
def an_init_container_has_network_through_the_mesh():
    early()


def connections(space, selector, line_has):
    """Lines of the sidecars' metrics about connections that were opened."""
    lines = ""
    for one in listed("pods", space, selector):
        lines += kubectl("-n", space, "exec", one["metadata"]["name"], "-c", "istio-proxy", "--",
                         "pilot-agent", "request", "--debug-port=15020", "GET", "/stats/prometheus")
    opened = [line for line in lines.splitlines() if line.startswith("istio_tcp_connections_opened_total{")]
    return [line for line in opened if all(word in line for word in line_has)]


@promise
def traffic_between_pods_is_mutual_tls():
    early()
    caller = "spiffe://cluster.local/ns/shop/sa/default"
    assert connections("shop", "app=cart", ['connection_security_policy="mutual_tls"', caller])


@promise
def bookinfo_runs_in_a_labelled_namespace_and_every_hop_is_mutual_tls():
    text = (cluster.HERE.parent / "examples/bookinfo/bookinfo.yaml").read_text()
    objects = json.loads(kubectl("apply", "--dry-run=client", "-o", "json", "-f", "-", text=text))["items"]
    for one in objects:
        if one["kind"] == "Deployment":
            template = one["spec"]["template"]
            for container in template["spec"]["containers"]:
                # The same parts, without a registry.
                part = template["metadata"]["annotations"][f"remora.dev/demo.{container['name']}"]
                container.update(image=IMAGE, args=["demo", part])
    apply(*objects)
    for one in objects:
        if one["kind"] == "Deployment":
            rolled_out(one["metadata"]["name"], "bookinfo")
    for one in json.loads(kubectl("-n", "bookinfo", "get", "pods", "-o", "json"))["items"]:
        assert names(one) == ["istio-init", "istio-proxy"], one["metadata"]["name"]
    page = "http://productpage.bookinfo:9080/productpage"
    # Each of the three versions of reviews has its turn.
    apply(pod("reader", "bookinfo", [demo("read", "load", page, "--rate", 10, "--seconds", 3)], restartPolicy="Never"))
    assert ended("reader", "bookinfo") == "Succeeded", kubectl("-n", "bookinfo", "logs", "reader", "-c", "read")
    hops = [("productpage", "default"), ("details", "bookinfo-productpage"), ("reviews", "bookinfo-productpage"),
            ("ratings", "bookinfo-reviews")]
    for callee, caller in hops:
        identity = f"spiffe://cluster.local/ns/bookinfo/sa/{caller}"
        received = connections("bookinfo", f"app={callee}", ['reporter="destination"', identity])
        assert received and all('policy="mutual_tls"' in line for line in received), (callee, received)
    gone("bookinfo")


@promise
def a_job_ends_although_it_has_a_sidecar():
    template = {"spec": {"restartPolicy": "Never", "containers": [fetch("work", CART)]}}
    apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work", "namespace": "shop"},
           "spec": {"backoffLimit": 0, "template": template}})
    kubectl("-n", "shop", "wait", "--for=condition=Complete", "job/work", f"--timeout={PATIENCE - 10}s")


@promise
def a_pod_in_the_wrong_order_is_told_so_or_refused():
    words = called("apply", "-f", "-", text=json.dumps(broken("shop")))
    assert words.returncode == 0 and "migrate" in words.stderr, words
    kubectl("-n", "shop", "delete", "pod", "broken", "--grace-period=1")
    namespace("strict", **{"istio-injection": "enabled", "remora.dev/enforce": "true"})

    def refused():
        done = called("apply", "-f", "-", text=json.dumps(broken("strict")))
        if done.returncode == 0:
            kubectl("-n", "strict", "delete", "pod", "broken", "--grace-period=1")
        return "will not start" in done.stderr and done.returncode != 0
    until("the label to be known", refused)


@promise
def a_pod_without_a_certificate_is_refused_where_certificates_are_demanded():
    plain()
    define((cluster.HERE / "crds.yaml").read_text())
    apply(pod("before", "plain", [fetch("fetch", CART)], restartPolicy="Never"))
    assert ended("before", "plain") == "Succeeded"
    apply({"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
           "metadata": {"name": "default", "namespace": "shop"}, "spec": {"mtls": {"mode": "STRICT"}}})
    tries = iter(range(1000))

    def refused():
        name = f"after-{next(tries)}"
        apply(pod(name, "plain", [fetch("fetch", CART, 2)], restartPolicy="Never"))
        return ended(name, "plain") == "Failed"
    until("plain calls to be refused", refused)
    apply(pod("certified", "shop", [fetch("fetch", CART)], restartPolicy="Never"))
    assert ended("certified", "shop") == "Succeeded"
    kubectl("-n", "shop", "delete", "peerauthentication", "default")
