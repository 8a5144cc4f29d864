#!/bin/bash
# behaviour: An etcd that has lost its data and begins anew counts revisions from 1 again. A client that watches since
#   before reconnects by itself and asks for changes from the revision after the last one that it has seen. That is in
#   the future of the new store, which is no error: the watch is granted, stays silent for as many writes as the old
#   store had seen more, and then delivers from the middle, without a word about what it has left out. So a program
#   that keeps its state in etcd and follows it by watches goes on after such a loss as if nobody wrote any more; it
#   takes a read to see that the keys are gone.
# seen: etcd-server and etcd-client 3.4.23-4+b4 (Debian 12): a watch of a key that was written 50 times; then a new data
#   directory, and 60 writes more:
#   the watch shows 1 to 50, nothing of new-1 to new-50, and new-51 to new-60; `etcdctl watch` prints no error and lives
# needs: apt, dpkg. Exits with 0 as long as etcd behaves so.
# pfo: reads what it has agreed on again every ten seconds, and writes anew what is gone (agent/src/budget/fleet/link.rs).
set -euo pipefail
work=$(mktemp -d)
server= watcher=
trap 'for process in $watcher $server; do kill "$process" || true; done; wait; rm -rf "$work"' EXIT
cd "$work"
apt-get download -q etcd-server=3.4.23-4+b4 etcd-client=3.4.23-4+b4 > download.log 2>&1
for package in ./*.deb; do dpkg -x "$package" .; done

port=$((20000 + RANDOM % 10000))
url=http://127.0.0.1:$port peer=http://127.0.0.1:$((port + 1))
etcdctl() { ETCDCTL_API=3 usr/bin/etcdctl --endpoints "$url" "$@"; }
begin() {
    usr/bin/etcd --data-dir "$1" --listen-client-urls "$url" --advertise-client-urls "$url" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" \
        >> etcd.log 2>&1 &
    server=$!
    for _ in {1..100}; do etcdctl endpoint health > health.log 2>&1 && return; sleep 0.2; done
    return 1
}
begin first
ETCDCTL_API=3 usr/bin/etcdctl --endpoints "$url" watch k > watched.log 2> watch-errors.log &
watcher=$!
sleep 2
for n in {1..50}; do etcdctl put k "old-$n" > put.log; done
sleep 2
kill "$server" && wait "$server" || true
begin second
for n in {1..60}; do etcdctl put k "new-$n" > put.log; done
sleep 12

expect() {
    printf '%-44s %s\n' "$1" "$2"
    [ "$2" = "$3" ] || { echo "$1: $2, not $3: the behaviour has changed" >&2; exit 1; }
}
expect "values of the old store that were shown" "$(grep -c '^old-' watched.log || true)" 50
expect "values of the new store that were shown" "$(grep -c '^new-' watched.log || true)" 10
expect "the first of these" "$(grep -m 1 '^new-' watched.log)" new-51
expect "errors of the watch" "$(grep -c -i 'error' watch-errors.log || true)" 0
kill -0 "$watcher"
expect "the watch" lives lives
