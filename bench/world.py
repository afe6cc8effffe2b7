"""Pods in network namespaces with remora between them, for bench/reliability.py.

A bridge joins a control plane, a client pod and server pods. Nothing is left when a `World` is closed: namespaces belong
to processes that it ends.
"""

import ctypes
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
LIBC = ctypes.CDLL(None, use_errno=True)
PROXY, APP = 1337, 1000
SERVICE, CONTROL, CLIENT = "10.96.0.1", "10.77.0.2", "10.77.0.10"
# A certificate is valid from two minutes before it was issued and renewed after half of its life: a second from now.
RENEW_EVERY_SECOND = "122s"
DESCRIPTORS = 200_000


def sh(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def wait_until(what, ready, seconds=60):
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds} s")
        time.sleep(0.02)


class Namespace:
    """A network namespace, for as long as its process lives."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
        own = os.stat("/proc/self/ns/net").st_ino
        path = f"/proc/{self.holder.pid}/ns/net"
        wait_until("a network namespace", lambda: os.stat(path).st_ino != own)
        self.net = os.open(path, os.O_RDONLY)
        self.run("ip", "link", "set", "lo", "up")

    def enter(self, uid, descriptors=None):
        def prepare():
            if LIBC.setns(self.net, 0) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            if descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
            os.setgid(uid)
            os.setuid(uid)
        return prepare

    def run(self, *words):
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, preexec_fn=self.enter(0))

    def close(self):
        os.close(self.net)
        self.holder.kill()
        self.holder.wait()


class World:
    def __init__(self, remora):
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="remora-reliability-"))
        self.place.chmod(0o755)
        # The users of sidecars must be able to start it.
        self.remora = self.place / "remora"
        shutil.copy2(remora, self.remora)
        self.remora.chmod(0o755)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
            self.descriptors = DESCRIPTORS
        except (ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            self.descriptors = limit
        self.processes, self.namespaces = [], []
        self.node = self.namespace()
        self.node.run("ip", "link", "add", "br0", "type", "bridge")
        self.node.run("ip", "addr", "add", "10.77.0.1/24", "dev", "br0")
        self.node.run("ip", "link", "set", "br0", "up")
        self.plane = self.attach(CONTROL)
        self.servers, self.number = {}, 0

    def namespace(self):
        namespace = Namespace()
        self.namespaces.append(namespace)
        return namespace

    def attach(self, address, captured=False):
        pod = self.namespace()
        end = "v" + address.rsplit(".", 1)[1]
        node = self.node
        node.run("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", str(pod.holder.pid))
        node.run("ip", "link", "set", end, "master", "br0", "up")
        pod.run("ip", "addr", "add", f"{address}/24", "dev", "eth0")
        pod.run("ip", "link", "set", "eth0", "up")
        pod.run("ip", "route", "add", "default", "via", "10.77.0.1")
        pod.address = address
        if captured:
            pod.run(str(self.remora), "istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337", "-g", "1337",
                    "-m", "REDIRECT", "-i", "*", "-b", "*", "-d", "15020,15021,15090")
        return pod

    def start(self, namespace, words, uid, log, descriptors=None, **more):
        output = open(self.place / log, "ab")
        process = subprocess.Popen(words, preexec_fn=namespace.enter(uid, descriptors), stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=output, **more)
        output.close()
        process.log = self.place / log
        self.processes.append(process)
        return process

    def said(self, process, words):
        wait_until(f"{process.log.name} says {words!r}", lambda: words in process.log.read_text(errors="replace"))

    def worker(self, namespace, role, *words):
        """This program's own applications and loads; results are read from a file."""
        self.number += 1
        words = [sys.executable, str(HERE / "worker.py"), role, "--uid", str(APP), *map(str, words)]
        return self.start(namespace, words, 0, f"{role}-{self.number}.log")

    # The mesh.

    def write_mesh(self):
        documents = [f"kind: Workload\nname: web-0\nnamespace: shop\naddresses: [{CLIENT}]\nserviceAccount: web\ntunnel: hbone",
                     "kind: Service\nname: cart\nnamespace: shop\n"
                     f"addresses: [{SERVICE}]\nports: [{{port: 80, targetPort: 8080}}]"]
        for address, server in self.servers.items():
            name = "cart-" + address.rsplit(".", 1)[1]
            documents.append(f"kind: Workload\nname: {name}\nnamespace: shop\naddresses: [{address}]\n"
                             f"serviceAccount: cart\ntunnel: hbone\nhealthy: {str(server.listed).lower()}\n"
                             "services: {shop/cart.shop.svc.cluster.local: ['80:8080']}")
        new = self.place / "mesh.new"
        new.write_text("\n---\n".join(documents) + "\n")
        new.rename(self.place / "mesh.yaml")

    def start_control(self, port=15012):
        """Without waiting for it."""
        self.write_mesh()
        (self.place / "tokens.yaml").write_text("- {token: web-secret, namespace: shop, serviceAccount: web}\n"
                                                "- {token: cart-secret, namespace: shop, serviceAccount: cart}\n")
        config = self.place / f"control-{port}.yaml"
        config.write_text(f"listen: {CONTROL}:{port}\nserverNames: [istiod.istio-system.svc]\nauthority: ca\n"
                          "mesh: [mesh.yaml]\ntokens: tokens.yaml\nreload: 100ms\n")
        (self.place / "control.log").write_text("")
        return self.start(self.plane, [str(self.remora), "control", "--config", str(config)], 0, "control.log",
                          cwd=self.place)

    def control(self, port=15012):
        process = self.start_control(port)
        self.said(process, "listening on")
        return process

    def sidecar(self, pod, account, descriptors=None):
        files = self.place / pod.address
        for name, text in (("var/run/secrets/istio/root-cert.pem", (self.place / "ca/root-cert.pem").read_text()),
                           ("var/run/secrets/tokens/istio-token", f"{account}-secret")):
            path = files / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        out = files / "out"
        out.mkdir(exist_ok=True)
        os.chown(out, PROXY, PROXY)
        env = {"POD_NAME": f"{account}-{pod.address.rsplit('.', 1)[1]}", "POD_NAMESPACE": "shop",
               "SERVICE_ACCOUNT": account, "INSTANCE_IP": pod.address, "ISTIOD_SAN": "istiod.istio-system.svc",
               "SECRET_TTL": RENEW_EVERY_SECOND, "OUTPUT_CERTS": "./out",
               "PROXY_CONFIG": f"{{discoveryAddress: '{CONTROL}:15012', concurrency: 1, terminationDrainDuration: 3s}}"}
        return self.start(pod, [str(self.remora), "proxy", "sidecar"], PROXY, f"sidecar-{pod.address}.log",
                          descriptors or self.descriptors, cwd=files, env=env)

    def server(self, address):
        """A pod of the service with its application and sidecar, ready to be listed."""
        pod = self.attach(address, captured=True)
        pod.listed = False
        pod.app = self.worker(pod, "serve")
        pod.sidecar = self.sidecar(pod, "cart")
        self.servers[address] = pod
        self.write_mesh()
        self.ready(pod)
        return pod

    def client(self):
        self.web = self.attach(CLIENT, captured=True)
        self.web.sidecar = self.sidecar(self.web, "web")
        self.ready(self.web)

    def ready(self, pod, seconds=60):
        words = [sys.executable, str(HERE / "worker.py"), "ready", "--uid", str(PROXY)]
        def answered():
            return subprocess.run(words, preexec_fn=pod.enter(0), stderr=subprocess.DEVNULL).returncode == 0
        wait_until(f"{pod.address} is ready", answered, seconds)

    def list_servers(self, *addresses):
        for address, server in self.servers.items():
            server.listed = address in addresses
        self.write_mesh()

    def reload(self):
        time.sleep(1.0)

    def end(self, process, signal_=signal.SIGTERM, seconds=20):
        if signal_ and process.poll() is None:
            process.send_signal(signal_)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process in self.processes:
            self.processes.remove(process)

    def load(self, *words):
        load = self.worker(self.web, "load", "--to", f"{SERVICE}:80", *words)
        self.said(load, "started")
        return load

    def result(self, load):
        """What a load found, when it is told to end."""
        self.end(load, seconds=40)
        return json.loads(load.log.read_text().splitlines()[-1])

    def close(self):
        for process in list(self.processes):
            try:
                process.send_signal(signal.SIGCONT)
            except ProcessLookupError:
                pass
            process.kill()
            process.wait()
        for namespace in self.namespaces:
            namespace.close()
        shutil.rmtree(self.place)


def memory(process):
    """MiB that are resident."""
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def descriptors(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))
