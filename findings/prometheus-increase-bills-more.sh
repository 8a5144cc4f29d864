#!/bin/bash
# behaviour: For a series that begins and ends inside the range, increase() of Prometheus adds about one scrape interval
#   of growth that no sample contains: half an interval at either end. So an energy report that sums
#   increase(joules[range]) over jobs bills each job one interval of its power too much, and doubles a job that was
#   scraped twice. Ranges of a minute that tile the same time give a third figure. A counter that begins at 0 gains
#   less, because increase() never extrapolates below zero. Last minus first sample is what was counted.
# seen: promtool 2.42.0+ds-5+deb12u1 (Debian 12), scrapes every 15 s, 100 J a scrape, range 5 m:
#   2 scrapes, 1000 to 1100 J: 200    11 scrapes, 1000 to 2000 J: 1100    11 scrapes, 0 to 1000 J: 1050
#   the same 11 scrapes from 1000 J in ranges of 1 m, added: 1050    last minus first: 1000
# needs: apt, dpkg. Exits with 0 as long as promtool's engine computes so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -q prometheus=2.42.0+ds-5+deb12u1 > download.log 2>&1
dpkg -x prometheus*.deb .

cat > energy.yml <<'YAML'
evaluation_interval: 1m
tests:
  - interval: 15s
    input_series:
      # _ is a scrape without the series, before its job; stale is the scrape after the job.
      - {series: 'two_joules_total', values: '_x8 1000 1100 stale'}
      - {series: 'eleven_joules_total', values: '_x4 1000+100x10 stale'}
      - {series: 'fresh_joules_total', values: '_x4 0+100x10 stale'}
    promql_expr_test:
      - expr: increase(two_joules_total[5m])
        eval_time: 5m
        exp_samples: [{labels: '{}', value: 200}]
      - expr: increase(eleven_joules_total[5m])
        eval_time: 5m
        exp_samples: [{labels: '{}', value: 1100}]
      - expr: increase(fresh_joules_total[5m])
        eval_time: 5m
        exp_samples: [{labels: '{}', value: 1050}]
      - expr: sum_over_time(increase(eleven_joules_total[1m])[5m:1m])
        eval_time: 5m
        exp_samples: [{labels: '{}', value: 1050}]
      - expr: max_over_time(eleven_joules_total[5m]) - min_over_time(eleven_joules_total[5m])
        eval_time: 5m
        exp_samples: [{labels: '{}', value: 1000}]
YAML
sed -n 's/.*- expr: //p' energy.yml > queries
sed -n 's/.*value: \([0-9]*\).*/\1/p' energy.yml | paste -d ' ' - queries
usr/bin/promtool test rules energy.yml || { echo "the behaviour has changed" >&2; exit 1; }
