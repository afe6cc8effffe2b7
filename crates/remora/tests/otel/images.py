"""Writes an archive of images as `docker save` would: images.py WHEELS ARCHIVE

No registry is needed: Python is this machine's own, with what it links to; the SDK is what the wheels hold, laid out as
in the operator's image; `cp`, which the injected init container calls, is this machine's too.
"""

import hashlib
import io
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile

UNUSED = {"test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3", "turtledemo", "pydoc_data",
          "site-packages", "dist-packages"}


class Layer:
    """A tar in memory; every file comes after its directories."""

    def __init__(self):
        self.bytes = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.bytes, mode="w", format=tarfile.PAX_FORMAT)
        self.seen = set()

    def entry(self, path, kind, mode, data=b"", link=""):
        path = path.lstrip("/")
        if path in self.seen:
            return
        self.seen.add(path)
        parent = os.path.dirname(path)
        if parent:
            self.entry(parent, tarfile.DIRTYPE, 0o755)
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.size, info.linkname = kind, mode, len(data), link
        self.tar.addfile(info, io.BytesIO(data))

    def file(self, source, target=None):
        source = pathlib.Path(source)
        mode = 0o755 if os.access(source, os.X_OK) else 0o644
        self.entry(str(target or source), tarfile.REGTYPE, mode, source.read_bytes())

    def text(self, path, text):
        self.entry(path, tarfile.REGTYPE, 0o644, text.encode())

    def link(self, path, to):
        self.entry(path, tarfile.SYMTYPE, 0o777, link=to)

    def tree(self, source, target):
        for folder, folders, files in os.walk(source):
            folders[:] = sorted(f for f in folders if f not in UNUSED and not f.startswith("config-"))
            for name in sorted(files):
                path = os.path.join(folder, name)
                self.file(path, os.path.join(target, os.path.relpath(path, source)))

    def libraries_of(self, files):
        """What the dynamic loader would load for them."""
        said = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True).stdout
        for path in set(re.findall(r"(?:=> |^\t)(/\S+)", said, re.M)):
            self.file(path)
            # Older C libraries look names up by parts that nothing links to.
            if os.path.basename(path).startswith("libc.so"):
                for part in pathlib.Path(path).parent.glob("libnss_[df]*.so.2"):
                    self.file(part)

    def done(self):
        self.tar.close()
        return self.bytes.getvalue()


def modules(folder):
    return list(pathlib.Path(folder).rglob("*.so*"))


def python(wheels):
    layer = Layer()
    program = os.path.realpath(sys.executable)
    layer.file(program)
    for name in ("python", "python3"):
        layer.link(f"/usr/local/bin/{name}", program)
    for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        layer.tree(folder, folder)
        layer.libraries_of([program, *modules(os.path.join(folder, "lib-dynload"))])
    layer.libraries_of(modules(wheels))
    layer.text("/etc/nsswitch.conf", "hosts: files dns\n")
    layer.entry("/tmp", tarfile.DIRTYPE, 0o1777)
    return layer.done()


def sdk(wheels):
    layer = Layer()
    layer.tree(wheels, "/autoinstrumentation")
    return layer.done()


def copier():
    layer = Layer()
    program = os.path.realpath(shutil.which("cp"))
    layer.file(program, "/bin/cp")
    layer.libraries_of([program])
    return layer.done()


def save(path, images):
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    listed, files = [], {}
    for name, (layers, env) in images.items():
        digests = [hashlib.sha256(layer).hexdigest() for layer in layers]
        config = {"architecture": machine, "os": "linux",
                  "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin", *env]},
                  "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]}}
        files |= {f"{digest}.tar": layer for digest, layer in zip(digests, layers)}
        files[f"{len(listed)}.json"] = json.dumps(config).encode()
        listed.append({"Config": f"{len(listed)}.json", "RepoTags": [name],
                       "Layers": [f"{digest}.tar" for digest in digests]})
    files["manifest.json"] = json.dumps(listed).encode()
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def main(wheels, archive):
    with tempfile.TemporaryDirectory() as unpacked:
        for wheel in sorted(pathlib.Path(wheels).glob("*.whl")):
            zipfile.ZipFile(wheel).extractall(unpacked)
        base, agent = python(unpacked), sdk(unpacked)
    save(archive, {
        "test.invalid/python:1": ([base], []),
        "test.invalid/autoinstrumentation-python:1": ([copier(), agent], []),
        "test.invalid/collector:1": ([base, agent], ["PYTHONPATH=/autoinstrumentation"]),
    })


main(*sys.argv[1:])
