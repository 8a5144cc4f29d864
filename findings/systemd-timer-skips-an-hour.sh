#!/bin/bash
# behaviour: A timer of systemd whose OnCalendar= is in local time does not run in the hour that autumn repeats:
#   hourly is then once in two hours, and every 15 minutes has a gap of 75. In spring, a daily timer whose minute is
#   in the hour that is left out does not run on that day at all, neither earlier nor later. So readings of counters,
#   prices of the hour and nightly reports lack an hour or a day, and a difference of counters is that of two hours,
#   without an error. With UTC in OnCalendar= nothing is skipped.
# seen: systemd 252.39-1~deb12u2 (Debian 12), Europe/Berlin in 2026, longest time from run to run:
#   *:00 in October: 120 min    *:0/15 in October: 75 min    *:0/15 UTC in October: 15 min
#   02:30 in March: 2820 min (47 h)    02:30 UTC in March: 1440 min
# needs: apt, dpkg, the shared libraries of a Debian 12 with systemd, tzdata. It computes; no systemd has to run.
#   Exits with 0 as long as systemd does so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -q systemd=252.39-1~deb12u2 libsystemd-shared=252.39-1~deb12u2 > download.log 2>&1
for package in ./*.deb; do dpkg -x "$package" .; done
libraries=$(dirname "$(find . -name 'libsystemd-shared-*.so')")

# Prints the longest time between runs of a timer, in minutes, over so many runs after a time in UTC.
longest_gap() {
    local at before='' longest=0
    while read -r at; do
        at=$(date --date "$at" +%s)
        if [ -n "$before" ] && [ $((at - before)) -gt $longest ]; then longest=$((at - before)); fi
        before=$at
    done < <(TZ=UTC LC_ALL=C LD_LIBRARY_PATH=$libraries usr/bin/systemd-analyze calendar \
        --base-time "$1" --iterations "$2" "$3" | sed -nE 's/.*(elapse|#[0-9]+): //p')
    echo $((longest / 60))
}
expect() {
    local got
    got=$(longest_gap "$1" "$2" "$3")
    printf '%-26s after %s: %4s min at most\n' "$3" "$1" "$got"
    [ "$got" = "$4" ] || { echo "expected $4: the behaviour has changed" >&2; exit 1; }
}
expect '2026-10-24 20:30:00 UTC' 12 '*-*-* *:00 Europe/Berlin' 120
expect '2026-10-24 20:30:00 UTC' 40 '*-*-* *:0/15 Europe/Berlin' 75
expect '2026-10-24 20:30:00 UTC' 40 '*-*-* *:0/15 UTC' 15
expect '2026-03-27 12:00:00 UTC' 5 '*-*-* 02:30 Europe/Berlin' 2820
expect '2026-03-27 12:00:00 UTC' 5 '*-*-* 02:30 UTC' 1440
