#!/usr/bin/env bash
# The first process of the node's namespaces: sets them up, then takes in orphans until it is killed, which ends all.
set -euo pipefail
data=$1 bin=$2 address=$3
# Nothing that is mounted here may be seen outside, and nothing of the machine's named namespaces in here.
mount --make-rprivate /
umount -l /run/netns 2>/dev/null || true
mount -t proc proc /proc
# Before its place may be covered.
mkdir -p "$data/bin"
mount --bind "$bin" "$data/bin"
for name in var run; do
    mkdir -p "$data/$name"
    mount --bind "$data/$name" "/$name"
done
mkdir -p /var/lib /var/log /var/tmp /run/netns
ln -sfn /run /var/run
for name in etc opt; do
    mkdir -p "$data/over/$name" "$data/work/$name"
    mount -t overlay overlay -o "lowerdir=/$name,upperdir=$data/over/$name,workdir=$data/work/$name" "/$name"
done
# Mounts of pods must be seen by the kubelet's children.
mount --make-rshared /
mkdir -p /etc/cni/net.d /opt/cni
rm -rf /opt/cni/bin
cp -r "$data/bin/cni" /opt/cni/bin
cp "$(dirname "$0")/capture.py" /opt/cni/bin/
cp "$data/network.conflist" /etc/cni/net.d/10-e2e.conflist
ip link set lo up
ip link add node0 type veth peer name node1
ip link set node0 up
ip link set node1 up
ip address add "$address/24" dev node0
# Goes nowhere; programs want one.
ip route add default via "${address%.*}.254" dev node0
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
touch "$data/node-is-there"
while :; do
    sleep 3600 &
    wait || true
done
