#!/usr/bin/env python3
"""A chained CNI plugin that does what Istio's does: captures the traffic of a pod before its first container.

Only pods of the namespace `cni` are captured, by the remora beside the configuration (`binary`).
"""
import json
import os
import subprocess
import sys

config = json.load(sys.stdin)
command = os.environ["CNI_COMMAND"]
if command == "VERSION":
    print(json.dumps({"cniVersion": "1.0.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]}))
if command == "ADD":
    arguments = dict(pair.split("=", 1) for pair in os.environ.get("CNI_ARGS", "").split(";") if "=" in pair)
    if arguments.get("K8S_POD_NAMESPACE") == "cni":
        done = subprocess.run(["nsenter", f"--net={os.environ['CNI_NETNS']}", config["binary"], "istio-iptables",
                               "-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "",
                               "-b", "*", "-d", "15090,15021,15020"], capture_output=True, text=True)
        if done.returncode != 0:
            print(json.dumps({"cniVersion": config["cniVersion"], "code": 100, "msg": done.stderr}))
            sys.exit(1)
    print(json.dumps(config["prevResult"]))
