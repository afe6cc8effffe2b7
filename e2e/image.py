#!/usr/bin/env python3
"""Makes an OCI archive of a folder. Usage: image.py NAME FOLDER ARCHIVE ENTRYPOINT-AS-JSON"""
import hashlib
import io
import json
import sys
import tarfile

name, folder, archive, entrypoint = sys.argv[1:5]
KIND = "application/vnd.oci.image"


def plain(entry):
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def described(kind, blob):
    return {"mediaType": f"{KIND}.{kind}", "digest": "sha256:" + hashlib.sha256(blob).hexdigest(), "size": len(blob)}


buffer = io.BytesIO()
with tarfile.open(fileobj=buffer, mode="w") as tar:
    tar.add(folder, ".", filter=plain)
layer = buffer.getvalue()
config = json.dumps({"architecture": "amd64", "os": "linux",
                     "config": {"Entrypoint": json.loads(entrypoint), "Env": ["PATH=/bin"]},
                     "rootfs": {"type": "layers", "diff_ids": [described("", layer)["digest"]]}}).encode()
manifest = json.dumps({"schemaVersion": 2, "mediaType": f"{KIND}.manifest.v1+json",
                       "config": described("config.v1+json", config),
                       "layers": [described("layer.v1.tar", layer)]}).encode()
index = json.dumps({"schemaVersion": 2, "manifests": [
    described("manifest.v1+json", manifest) | {"annotations": {"io.containerd.image.name": name}}]}).encode()
with tarfile.open(archive, "w") as tar:
    blobs = [("blobs/" + described("", b)["digest"].replace(":", "/"), b) for b in (config, manifest, layer)]
    for path, blob in [("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), ("index.json", index), *blobs]:
        entry = tarfile.TarInfo(path)
        entry.size = len(blob)
        tar.addfile(entry, io.BytesIO(blob))
