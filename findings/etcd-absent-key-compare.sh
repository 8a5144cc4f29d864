#!/bin/bash
# behaviour: In a transaction of etcd, a comparison with the value of a key that does not exist fails for every
#   operator: `value("k") = ""` and `value("k") != "x"` both take the failure branch. So "write unless another node
#   wrote x" never writes to a new key. Revision and version of such a key compare as 0.
# seen: etcd-server and etcd-client 3.4.23-4+b4 (Debian 12):
#   value = ""  FAILURE    value != "x"  FAILURE    version = 0  SUCCESS    mod = 0  SUCCESS
#   after `put k y`: value != "x"  SUCCESS
# needs: apt, dpkg. Exits with 0 as long as etcd behaves so.
set -euo pipefail
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; wait; rm -rf "$work"' EXIT
cd "$work"
apt-get download -q etcd-server=3.4.23-4+b4 etcd-client=3.4.23-4+b4 > download.log 2>&1
for package in ./*.deb; do dpkg -x "$package" .; done

port=$((20000 + RANDOM % 10000))
url=http://127.0.0.1:$port peer=http://127.0.0.1:$((port + 1))
usr/bin/etcd --data-dir data --listen-client-urls "$url" --advertise-client-urls "$url" \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" \
    > etcd.log 2>&1 &
server=$!
etcdctl() { ETCDCTL_API=3 usr/bin/etcdctl --endpoints "$url" "$@"; }
for _ in {1..100}; do etcdctl endpoint health > health.log 2>&1 && break; sleep 0.2; done

# The transaction gets from a key that is never there, so that it changes nothing.
branch() { printf '%s\n\nget nothing\n\nget nothing\n\n' "$1" | etcdctl txn | sed -n 1p; }
expect() {
    local got
    got=$(branch "$1")
    printf '%-20s %s\n' "$1" "$got"
    [ "$got" = "$2" ] || { echo "$1 took $got, not $2: the behaviour has changed" >&2; exit 1; }
}
expect 'value("k") = ""' FAILURE
expect 'value("k") != "x"' FAILURE
expect 'version("k") = "0"' SUCCESS
expect 'mod("k") = "0"' SUCCESS
etcdctl put k y > put.log
expect 'value("k") != "x"' SUCCESS
