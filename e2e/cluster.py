#!/usr/bin/env python3
"""A Kubernetes of one node, of real parts, in namespaces of its own.

    cluster.py up              start it (a few seconds once the parts are there, see ./tools)
    cluster.py kubectl ARGS    talk to it
    cluster.py node COMMAND    run something where the node's addresses can be reached
    cluster.py load FILE       make an OCI archive known to it
    cluster.py down            stop it and leave nothing behind

Network, mounts and processes are the node's own; the machine's are not touched, except for a few kernel settings the
kubelet insists on, which `down` puts back. Needs root.

REMORA_E2E_KUBELET is another kubelet to start, of another version for example.

With REMORA_E2E_KUBECONFIG any other cluster is used instead. REMORA_E2E_LOAD is then a command that makes an OCI archive
known to its nodes, as in `kind load image-archive`; the archive is its last word.
"""
import base64
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
DATA = pathlib.Path(os.environ.get("REMORA_E2E_DATA", "/tmp/remora-e2e"))
NODE, ADDRESS, PODS, SERVICES = "node-1", "10.213.0.1", "10.214.0.0/16", "10.215.0.0/16"
FIRST_SERVICE = "10.215.0.1"
# Somebody else's cluster.
OTHER = os.environ.get("REMORA_E2E_KUBECONFIG")
# Another kubelet than the one of ./tools.
KUBELET = os.environ.get("REMORA_E2E_KUBELET")
# What the kubelet changes for the whole machine.
KERNEL = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
          "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"]


def tools(what="node"):
    """Where the programs are; got and built where they are not."""
    done = subprocess.run([HERE / "tools", what], check=True, stdout=subprocess.PIPE, text=True)
    return pathlib.Path(done.stdout.strip())


# Where the node sees them.
BIN = DATA / "bin"


def run(*words, **options):
    return subprocess.run([str(w) for w in words], check=True, **options)


def anchor():
    try:
        return int((DATA / "anchor").read_text())
    except FileNotFoundError:
        sys.exit("the cluster is not up: cluster.py up")


def is_own():
    """Whether the node is ours to do with what we like."""
    return not OTHER


def is_up():
    return bool(OTHER) or (DATA / "anchor").exists()


def inside(*words):
    return ["nsenter", "-t", str(anchor()), "-n", "-m", "-p", "--", *[str(w) for w in words]]


# Certificates -------------------------------------------------------------------------------------------------------

def authority(name):
    key, certificate = DATA / f"pki/{name}.key", DATA / f"pki/{name}.crt"
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
        "-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-keyout", key, "-out", certificate,
        stderr=subprocess.DEVNULL)


def certificate(name, subject, usage, names="", by="ca"):
    def file(suffix):
        return DATA / f"pki/{name}.{suffix}"
    extension = f"keyUsage=critical,digitalSignature\nextendedKeyUsage={usage}\n"
    if names:
        extension += f"subjectAltName={names}\n"
    file("ext").write_text(extension)
    run("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", subject,
        "-keyout", file("key"), "-out", file("csr"), stderr=subprocess.DEVNULL)
    run("openssl", "x509", "-req", "-days", "30", "-in", file("csr"), "-CA", DATA / f"pki/{by}.crt",
        "-CAkey", DATA / f"pki/{by}.key", "-CAcreateserial", "-extfile", file("ext"),
        "-out", file("crt"), stderr=subprocess.DEVNULL)


def kubeconfig(name):
    def data(file):
        return base64.b64encode((DATA / "pki" / file).read_bytes()).decode()
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "e2e",
        "clusters": [{"name": "e2e", "cluster": {"server": "https://127.0.0.1:6443",
                                                 "certificate-authority-data": data("ca.crt")}}],
        "users": [{"name": name, "user": {"client-certificate-data": data(f"{name}.crt"),
                                          "client-key-data": data(f"{name}.key")}}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": name}}]}
    (DATA / f"{name}.kubeconfig").write_text(json.dumps(config))


def certificates():
    (DATA / "pki").mkdir()
    authority("ca")
    authority("front")
    names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
             "kubernetes.default.svc.cluster.local"]
    addresses = ["127.0.0.1", ADDRESS, FIRST_SERVICE]
    alternative = ",".join([f"DNS:{n}" for n in names] + [f"IP:{a}" for a in addresses])
    certificate("apiserver", "/CN=kube-apiserver", "serverAuth", alternative)
    certificate("apiserver-kubelet", "/O=system:masters/CN=apiserver-kubelet", "clientAuth")
    certificate("front-client", "/CN=front-client", "clientAuth", by="front")
    certificate("kubelet-server", f"/O=system:nodes/CN=system:node:{NODE}", "serverAuth", f"DNS:{NODE},IP:{ADDRESS}")
    for name, subject in [("admin", "/O=system:masters/CN=admin"), ("kubelet", f"/O=system:nodes/CN=system:node:{NODE}"),
                          ("controllers", "/CN=system:kube-controller-manager"), ("scheduler", "/CN=system:kube-scheduler"),
                          ("proxy", "/CN=system:kube-proxy")]:
        certificate(name, subject, "clientAuth")
        kubeconfig(name)
    run("openssl", "genrsa", "-out", DATA / "pki/accounts.key", "2048", stderr=subprocess.DEVNULL)
    run("openssl", "rsa", "-in", DATA / "pki/accounts.key", "-pubout", "-out", DATA / "pki/accounts.pub",
        stderr=subprocess.DEVNULL)


def serving(host):
    """The bundle of an authority for webhooks, and a certificate and key for one of them."""
    if not (DATA / "pki/hooks.crt").exists():
        (DATA / "pki").mkdir(parents=True, exist_ok=True)
        authority("hooks")
    certificate(host, f"/CN={host[:60]}", "serverAuth", f"DNS:{host}", by="hooks")
    bundle = base64.b64encode((DATA / "pki/hooks.crt").read_bytes()).decode()
    return bundle, (DATA / f"pki/{host}.crt").read_text(), (DATA / f"pki/{host}.key").read_text()


# Configuration ------------------------------------------------------------------------------------------------------

def configure():
    (DATA / "containerd.toml").write_text(f"""
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.btrfs"]
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
disable_apparmor = true
# Containers of this machine may lack the right to lower the score.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{BIN}/runc"
""")
    cgroup_v1 = not pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists()
    kubelet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "tlsCertFile": f"{DATA}/pki/kubelet-server.crt", "tlsPrivateKeyFile": f"{DATA}/pki/kubelet-server.key",
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True},
                           "x509": {"clientCAFile": f"{DATA}/pki/ca.crt"}},
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "failCgroupV1": not cgroup_v1, "cgroupDriver": "cgroupfs", "failSwapOn": False,
        "resolvConf": f"{DATA}/resolv.conf", "clusterDomain": "cluster.local", "clusterDNS": [ADDRESS],
        "volumePluginDir": "/var/lib/kubelet/plugins", "serializeImagePulls": False,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100, "nodeStatusUpdateFrequency": "4s"}
    (DATA / "kubelet.json").write_text(json.dumps(kubelet))
    proxy = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
        "clientConnection": {"kubeconfig": f"{DATA}/proxy.kubeconfig"}, "hostnameOverride": NODE, "clusterCIDR": PODS,
        # Limits of the machine's, which a namespace may not set.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "nftables": {"minSyncPeriod": "100ms"}}
    (DATA / "proxy.json").write_text(json.dumps(proxy))
    network = {"cniVersion": "1.0.0", "name": "e2e", "plugins": [
        {"type": "bridge", "bridge": "pods0", "isDefaultGateway": True, "hairpinMode": True,
         "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS.replace("/16", "/24")}]]}},
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "capture.py", "binary": str(DATA / "remora")}]}
    (DATA / "network.conflist").write_text(json.dumps(network))
    (DATA / "resolv.conf").write_text("")


def image(name, entrypoint, applets, files=None):
    """An OCI archive with busybox under some names, and files: a path to copy, or the text of a script."""
    root = DATA / "image"
    shutil.rmtree(root, ignore_errors=True)
    (root / "bin").mkdir(parents=True)
    for directory in ["tmp", "etc"]:
        (root / directory).mkdir()
    shutil.copy(tools("busybox") / "busybox", root / "bin/busybox")
    for applet in applets:
        (root / "bin" / applet).symlink_to("busybox")
    for path, content in (files or {}).items():
        if isinstance(content, pathlib.Path):
            shutil.copy(content, root / path)
        else:
            (root / path).write_text(content)
        (root / path).chmod(0o755)
    (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\napp:x:1000:1000:app:/:/bin/sh\n")
    # Without it the C library looks for plugins that are not there.
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    archive = DATA / "image.tar"
    run(sys.executable, HERE / "image.py", name, root, archive, json.dumps(entrypoint))
    return archive


# Running ------------------------------------------------------------------------------------------------------------

def daemon(name, *words):
    words = [str(w) for w in words]
    log = open(DATA / f"log/{name}.log", "ab")
    environment = {"PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    started = subprocess.Popen(inside(*words), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                               start_new_session=True)
    (DATA / f"log/{name}.json").write_text(json.dumps({"pid": started.pid, "words": words}))


def restart(name):
    """Kills a daemon and starts it again."""
    known = json.loads((DATA / f"log/{name}.json").read_text())
    # What entered the namespaces waits outside of them for the daemon.
    pid = known["pid"]
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    while pathlib.Path(f"/proc/{pid}/exe").exists():
        time.sleep(0.05)
    daemon(name, *known["words"])


def until(what, *words, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if subprocess.run([str(w) for w in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            return
        time.sleep(0.2)
    for log in sorted((DATA / "log").glob("*.log")):
        print(f"== {log.name}", *log.read_text(errors="replace").splitlines()[-5:], sep="\n", file=sys.stderr)
    sys.exit(f"gave up waiting for {what}; logs are in {DATA}/log")


def kubectl(*words):
    if OTHER:
        return ["kubectl", "--kubeconfig", OTHER, *[str(w) for w in words]]
    return inside(BIN / "kubectl", "--kubeconfig", DATA / "admin.kubeconfig", *words)


def up():
    if OTHER:
        (DATA / "pki").mkdir(parents=True, exist_ok=True)
        return load(busybox())
    if is_up():
        sys.exit("the cluster is up already, or remains of one are there: cluster.py down")
    bin = tools()
    shutil.rmtree(DATA, ignore_errors=True)
    (DATA / "log").mkdir(parents=True)
    (DATA / "kernel").write_text(json.dumps({k: pathlib.Path("/proc/sys", k).read_text().strip() for k in KERNEL}))
    certificates()
    configure()
    log = open(DATA / "log/node.log", "wb")
    outer = subprocess.Popen(["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private",
                              HERE / "node.sh", DATA, bin, ADDRESS], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                             start_new_session=True)
    until("the node's namespaces", "test", "-e", DATA / "node-is-there", seconds=20)
    children = pathlib.Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
    (DATA / "anchor").write_text(children[0])
    start()


def start():
    pki, etcd = DATA / "pki", "http://127.0.0.1:2379"
    daemon("etcd", BIN / "etcd", "--data-dir", "/var/lib/etcd", "--listen-client-urls", etcd,
           "--advertise-client-urls", etcd)
    daemon("containerd", BIN / "containerd", "--config", DATA / "containerd.toml")
    daemon("dns", sys.executable, HERE / "dns.py", ADDRESS, BIN / "kubectl", DATA / "admin.kubeconfig")
    until("etcd", *inside("curl", "-fsS", f"{etcd}/health"))
    daemon("apiserver", BIN / "kube-apiserver", f"--etcd-servers={etcd}", f"--advertise-address={ADDRESS}",
           f"--service-cluster-ip-range={SERVICES}", "--allow-privileged", "--authorization-mode=Node,RBAC",
           f"--client-ca-file={pki}/ca.crt", f"--tls-cert-file={pki}/apiserver.crt",
           f"--tls-private-key-file={pki}/apiserver.key", f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
           f"--kubelet-client-key={pki}/apiserver-kubelet.key", f"--kubelet-certificate-authority={pki}/ca.crt",
           "--kubelet-preferred-address-types=InternalIP",
           "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
           f"--service-account-key-file={pki}/accounts.pub", f"--service-account-signing-key-file={pki}/accounts.key",
           f"--requestheader-client-ca-file={pki}/front.crt", "--requestheader-allowed-names=front-client",
           "--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
           "--requestheader-extra-headers-prefix=X-Remote-Extra-", f"--proxy-client-cert-file={pki}/front-client.crt",
           f"--proxy-client-key-file={pki}/front-client.key")
    until("the API server", *kubectl("get", "--raw", "/readyz"))
    daemon("controllers", BIN / "kube-controller-manager", f"--kubeconfig={DATA}/controllers.kubeconfig",
           "--leader-elect=false", "--bind-address=127.0.0.1", "--use-service-account-credentials",
           f"--service-account-private-key-file={pki}/accounts.key", f"--root-ca-file={pki}/ca.crt",
           f"--cluster-signing-cert-file={pki}/ca.crt", f"--cluster-signing-key-file={pki}/ca.key",
           "--flex-volume-plugin-dir=/var/lib/kubelet/plugins")
    daemon("scheduler", BIN / "kube-scheduler", f"--kubeconfig={DATA}/scheduler.kubeconfig", "--leader-elect=false",
           "--bind-address=127.0.0.1")
    until("containerd", *inside(BIN / "ctr", "version"))
    load(image("localhost/pause:1", ["/bin/sleep", "2147483647"], ["sleep"]))
    load(busybox())
    kubelet = BIN / "kubelet"
    if KUBELET:
        # Where the node sees it.
        kubelet = pathlib.Path(shutil.copy(KUBELET, DATA / "kubelet"))
    daemon("kubelet", kubelet, f"--config={DATA}/kubelet.json", f"--kubeconfig={DATA}/kubelet.kubeconfig",
           f"--hostname-override={NODE}", f"--node-ip={ADDRESS}", "--root-dir=/var/lib/kubelet")
    daemon("proxy", BIN / "kube-proxy", f"--config={DATA}/proxy.json")
    until("the node", *kubectl("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=1s"))
    until("the default service account", *kubectl("-n", "default", "get", "serviceaccount", "default"))


def busybox():
    applets = ["sh", "sleep", "wget", "httpd", "nc", "cat", "echo", "true", "false", "ip", "id"]
    return image("localhost/busybox:1", ["/bin/sh"], applets)


def load(archive):
    if OTHER:
        how = os.environ.get("REMORA_E2E_LOAD") or sys.exit("REMORA_E2E_LOAD must say how images get to the nodes")
        return run(*shlex.split(how), archive)
    run(*inside(BIN / "ctr", "-n", "k8s.io", "images", "import", archive), stdout=subprocess.DEVNULL)


def down():
    if OTHER:
        return shutil.rmtree(DATA, ignore_errors=True)
    if is_up():
        pid = anchor()
        # Only what `up` started, which carries its folder's name.
        if str(DATA).encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() if pathlib.Path(f"/proc/{pid}").exists() else False:
            os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 30
        while pathlib.Path(f"/proc/{pid}").exists() and time.monotonic() < end:
            time.sleep(0.1)
    if (DATA / "kernel").exists():
        for name, value in json.loads((DATA / "kernel").read_text()).items():
            file = pathlib.Path("/proc/sys", name)
            if file.read_text().strip() != value:
                file.write_text(value)
    for _ in range(20):
        groups = subprocess.run("find /sys/fs/cgroup -depth -type d ( -path */kubepods* -o -path */k8s.io* )".split(),
                                stdout=subprocess.PIPE, text=True).stdout.split()
        if not groups:
            break
        for group in groups:
            try:
                os.rmdir(group)
            except OSError:
                pass
        time.sleep(0.3)
    shutil.rmtree(DATA, ignore_errors=True)


def main(words):
    match words:
        case ["up"]:
            up()
        case ["down"]:
            down()
        case ["load", archive]:
            load(archive)
        case ["kubectl", *rest]:
            sys.exit(subprocess.run(kubectl(*rest)).returncode)
        case ["node", *rest] if rest:
            sys.exit(subprocess.run(inside(*rest)).returncode)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
