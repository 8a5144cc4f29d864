#!/bin/bash
# behaviour: An etcd that is tuned for a slow network lengthens short leases without an error: it grants at least one
#   and a half election timeouts, rounded up to seconds. With an election timeout of 10 s, a client that requests a
#   lease of 5 s gets 15 s, so its peers notice its death ten seconds later than it planned. Only the answer to the
#   grant says so.
# seen: etcd-server and etcd-client 3.4.23-4+b4 (Debian 12):
#   election timeout  1 s (the default): requested 1 and 5 s, granted 2 and 5 s
#   election timeout 10 s: requested 5 and 16 s, granted 15 and 16 s
# needs: apt, dpkg. Takes about half a minute. Exits with 0 as long as etcd behaves so.
set -euo pipefail
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; wait; rm -rf "$work"' EXIT
cd "$work"
apt-get download -q etcd-server=3.4.23-4+b4 etcd-client=3.4.23-4+b4 > download.log 2>&1
for package in ./*.deb; do dpkg -x "$package" .; done
etcdctl() { ETCDCTL_API=3 usr/bin/etcdctl --endpoints "$url" "$@"; }

# Starts a member with a heartbeat and an election timeout, in ms, and prints what it grants for the requested leases.
granted() {
    local heartbeat=$1 timeout=$2 port=$((20000 + RANDOM % 10000)) requested
    shift 2
    url=http://127.0.0.1:$port
    local peer=http://127.0.0.1:$((port + 1))
    usr/bin/etcd --data-dir "data-$timeout" --heartbeat-interval "$heartbeat" --election-timeout "$timeout" \
        --listen-client-urls "$url" --advertise-client-urls "$url" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" \
        > etcd.log 2>&1 &
    server=$!
    # A member that is alone still waits for one election.
    for _ in {1..300}; do etcdctl endpoint health > health.log 2>&1 && break; sleep 0.2; done
    for requested in "$@"; do
        etcdctl lease grant "$requested" | sed 's/.*TTL(\(.*\)s).*/\1/'
    done > "granted-$timeout"
    kill "$server"
    wait "$server" || true
    server=
}
expect() {
    local got
    got=$(paste -sd ' ' "granted-$1")
    echo "election timeout $1 ms: requested $2, granted $got"
    [ "$got" = "$3" ] || { echo "granted $got, not $3: the behaviour has changed" >&2; exit 1; }
}
granted 100 1000 1 5
expect 1000 '1 5' '2 5'
granted 1000 10000 5 16
expect 10000 '5 16' '15 16'
