"""Pods in network namespaces with remora between them, for bench/reliability.py and bench/floods.py.

A bridge joins a control plane, a client pod and server pods. Nothing is left when a `World` is closed: namespaces belong
to processes that it ends.
"""

import ctypes
import http.client
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
LIBC = ctypes.CDLL(None, use_errno=True)
PROXY, APP = 1337, 1000
SERVICE, CONTROL, CLIENT = "10.96.0.1", "10.77.0.2", "10.77.0.10"
# A certificate is valid from two minutes before it was issued, and renewed after 49 to 51 % of that time, as each sidecar
# draws at its start: a fraction of a second to six seconds from now. With less it could be due at once, which sidecars take for a
# clock that is wrong and answer with growing waits.
RENEW_OFTEN = "126s"
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

    def inside(self, work):
        """The result of a function on a thread in the namespace; sockets that it makes stay there."""
        results = []

        def body():
            try:
                if LIBC.setns(self.net, 0) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
                results.append((work(), None))
            except Exception as error:
                results.append((None, error))
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        value, error = results[0]
        if error:
            raise error
        return value

    def get(self, port, path):
        """Status and body of a page on the loopback address."""
        def work():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        return self.inside(work)

    def run(self, *words):
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, preexec_fn=self.enter(0))

    def close(self):
        os.close(self.net)
        self.holder.kill()
        self.holder.wait()


class World:
    """`life`: of certificates. `preload`: variables for processes whose clock is not the machine's, by address."""

    def __init__(self, remora, life=RENEW_OFTEN, preload=None):
        self.life, self.preload = life, preload or {}
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
        self.processes, self.namespaces, self.leaving = [], [], []
        self.node = self.namespace()
        self.node.run("ip", "link", "add", "br0", "type", "bridge")
        self.node.run("ip", "addr", "add", "10.77.0.1/24", "dev", "br0")
        self.node.run("ip", "link", "set", "br0", "up")
        self.plane = self.attach(CONTROL)
        self.servers, self.clients, self.number = {}, {}, 0

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

    def worker(self, namespace, role, *words, uid=APP):
        """This program's own applications and loads; results are read from a file."""
        self.number += 1
        words = [sys.executable, str(HERE / "worker.py"), role, "--uid", str(uid), *map(str, words)]
        return self.start(namespace, words, 0, f"{role}-{self.number}.log")

    # The mesh.

    def write_mesh(self):
        documents = ["kind: Service\nname: cart\nnamespace: shop\n"
                     f"addresses: [{SERVICE}]\nports: [{{port: 80, targetPort: 8080}}]"]
        for address in {CLIENT, *self.clients}:
            name = "web-" + address.rsplit(".", 1)[1]
            documents.append(f"kind: Workload\nname: {name}\nnamespace: shop\naddresses: [{address}]\n"
                             "serviceAccount: web\ntunnel: hbone")
        # A pod that ends is known until its processes are gone.
        for server in [*self.servers.values(), *self.leaving]:
            address = server.address
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
                          cwd=self.place, env={**os.environ, **self.preload.get(CONTROL, {})})

    def control(self, port=15012):
        process = self.start_control(port)
        self.said(process, "listening on")
        return process

    def sidecar(self, pod, account, descriptors=None, words=(), **more):
        files = self.place / pod.address
        for name, text in (("var/run/secrets/istio/root-cert.pem", (self.place / "ca/root-cert.pem").read_text()),
                           ("var/run/secrets/tokens/istio-token", f"{account}-secret")):
            path = files / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        # An Envoy needs the last two.
        for name in ("out", "etc/istio/proxy", "var/run/secrets/workload-spiffe-uds"):
            path = files / name
            path.mkdir(parents=True, exist_ok=True)
            os.chown(path, PROXY, PROXY)
        env = {"POD_NAME": f"{account}-{pod.address.rsplit('.', 1)[1]}", "POD_NAMESPACE": "shop",
               "SERVICE_ACCOUNT": account, "INSTANCE_IP": pod.address, "ISTIOD_SAN": "istiod.istio-system.svc",
               "SECRET_TTL": self.life, "OUTPUT_CERTS": "./out",
               "PROXY_CONFIG": f"{{discoveryAddress: '{CONTROL}:15012', concurrency: 1, terminationDrainDuration: 10s}}",
               **self.preload.get(pod.address, {}), **more}
        (self.place / f"sidecar-{pod.address}.log").write_text("")
        return self.start(pod, [str(self.remora), "proxy", "sidecar", *words], PROXY, f"sidecar-{pod.address}.log",
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

    def client(self, address=CLIENT):
        pod = self.attach(address, captured=True)
        pod.sidecar = self.sidecar(pod, "web")
        self.clients[address] = pod
        self.write_mesh()
        self.ready(pod)
        return pod

    @property
    def web(self):
        """The first client."""
        return self.clients[CLIENT]

    def is_ready(self, pod):
        try:
            return pod.get(15021, "/healthz/ready")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def ready(self, pod, seconds=120):
        wait_until(f"{pod.address} is ready", lambda: self.is_ready(pod), seconds)

    def list_servers(self, *addresses):
        """Names the endpoints of the service, and waits until every client knows them."""
        for address, server in self.servers.items():
            server.listed = address in addresses
        self.write_mesh()
        for client in self.clients.values():
            wait_until(f"{client.address} knows {addresses}", lambda pod=client: known_servers(pod) == set(addresses), 120)

    def leave(self, address):
        """Ends a pod that is not listed any more, without waiting: open connections have time to end."""
        pod = self.servers.pop(address)
        for process in (pod.sidecar, pod.app):
            process.send_signal(signal.SIGTERM)
        self.leaving.append(pod)

    def reap(self, wait=False):
        """Takes away the pods that ended."""
        for pod in list(self.leaving):
            if wait or all(process.poll() is not None for process in (pod.sidecar, pod.app)):
                for process in (pod.sidecar, pod.app):
                    # Not signalled again: a second SIGTERM means at once.
                    self.end(process, None, 60)
                self.leaving.remove(pod)
                self.write_mesh()
                self.namespaces.remove(pod)
                pod.close()

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

    def result(self, load, seconds=120):
        """What a load found, when it is told to end."""
        self.end(load, seconds=seconds)
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


def known_servers(pod):
    """Addresses of the service's healthy workloads, as the sidecar of a pod knows them."""
    workloads = config(pod)["workloads"]
    return {address for w in workloads if w["services"] and w["healthy"] for address in w["addresses"]}


def config(pod):
    """What the sidecar of a pod knows."""
    status, body = pod.get(15000, "/config_dump")
    return json.loads(body) if status == 200 else {"workloads": []}


def memory(process):
    """MiB that are resident."""
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def processor(process):
    """Seconds of CPU that were used."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descriptors(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))
