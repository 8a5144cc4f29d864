#!/bin/bash
# behaviour: One GPU without a reading ends the alerts over all of them. nvitop's N/A is NaN as a float, the client of
#   Prometheus exports it as a sample, and the sum of the node is NaN from then on: neither `sum(watts) > LIMIT` nor
#   its opposite returns anything, so that an alert of either kind never fires, while max() and the alert for each GPU
#   look right, and count() counts the GPU. avg_over_time() is NaN for as long as one such sample is in its range.
#   increase() ignores one in the middle of its range, and is NaN when it is the newest or the oldest. `sum(watts >=
#   0)` leaves it out.
# seen: nvitop 1.7.2, prometheus-client 0.26.0 (PyPI), promtool 2.42.0+ds-5+deb12u1 (Debian 12); 400 W, 400 W and N/A:
#   exported: gpu_power_watts{gpu="2"} NaN
#   sum NaN    avg NaN    max 400    count 3    sum > 700: nothing    sum <= 700: nothing    sum(watts >= 0): 800
#   increase of 100 J a minute, one NaN: in the middle 500, newest or oldest NaN    avg_over_time with one NaN: NaN
# needs: python3 with venv, PyPI, apt, dpkg. Exits with 0 as long as they do so.
# pfo: exports no series for a figure that a GPU does not have (docs/metrics.md).
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check nvitop==1.7.2 prometheus-client==0.26.0
apt-get download -q prometheus=2.42.0+ds-5+deb12u1 > download.log 2>&1
dpkg -x prometheus*.deb .

venv/bin/python - > exported 2> hints.log <<'PYTHON'
from nvitop import NA
from prometheus_client import CollectorRegistry, Gauge, generate_latest

registry = CollectorRegistry()
watts = Gauge("gpu_power_watts", "Power", ["gpu"], registry=registry)
for gpu, reading in enumerate([400, 400, NA]):
    watts.labels(gpu).set(float(reading))
print(generate_latest(registry).decode())
PYTHON
grep '^gpu_power_watts' exported
grep -qF 'gpu_power_watts{gpu="2"} NaN' exported || { echo "no NaN: the behaviour has changed" >&2; exit 1; }

cat > rules.yml <<'YAML'
groups:
  - name: power
    rules:
      - {alert: NodeAboveLimit, expr: sum(gpu_power_watts) > 700}
      - {alert: NodeBelowLimit, expr: sum(gpu_power_watts) <= 700}
      - {alert: GpuAboveLimit, expr: gpu_power_watts > 350}
YAML
cat > tests.yml <<'YAML'
rule_files: [rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'gpu_power_watts{gpu="0"}', values: '400x9'}
      - {series: 'gpu_power_watts{gpu="1"}', values: '400x9'}
      - {series: 'gpu_power_watts{gpu="2"}', values: 'NaN NaN NaN NaN NaN NaN NaN NaN NaN'}
      - {series: 'watts', values: '400 400 400 NaN 400 400 400 400 400 400'}
      - {series: 'joules_total', values: '0 100 200 NaN 400 500 600 700 800 900'}
    alert_rule_test:
      - {alertname: NodeAboveLimit, eval_time: 8m, exp_alerts: []}
      - {alertname: NodeBelowLimit, eval_time: 8m, exp_alerts: []}
      - {alertname: GpuAboveLimit, eval_time: 8m, exp_alerts: [{exp_labels: {gpu: 0}}, {exp_labels: {gpu: 1}}]}
    promql_expr_test:
      # Only NaN differs from itself.
      - {expr: count(sum(gpu_power_watts) != sum(gpu_power_watts)), eval_time: 8m, exp_samples: [{value: 1}]}
      - {expr: count(avg(gpu_power_watts) != avg(gpu_power_watts)), eval_time: 8m, exp_samples: [{value: 1}]}
      - {expr: sum(gpu_power_watts) > 700 or sum(gpu_power_watts) <= 700, eval_time: 8m, exp_samples: []}
      - {expr: count(gpu_power_watts), eval_time: 8m, exp_samples: [{value: 3}]}
      - {expr: max(gpu_power_watts), eval_time: 8m, exp_samples: [{value: 400}]}
      - {expr: sum(gpu_power_watts >= 0), eval_time: 8m, exp_samples: [{value: 800}]}
      - {expr: 'count(avg_over_time(watts[5m]) != avg_over_time(watts[5m]))', eval_time: 7m, exp_samples: [{value: 1}]}
      - {expr: 'max_over_time(watts[5m])', eval_time: 7m, exp_samples: [{value: 400}]}
      - {expr: 'increase(joules_total[5m])', eval_time: 7m, exp_samples: [{value: 500}]}
      # The fourth sample, NaN, is the newest at 3m and the oldest of three minutes at 6m.
      - {expr: 'count(increase(joules_total[3m]) != 1)', eval_time: 3m, exp_samples: [{value: 1}]}
      - {expr: 'increase(joules_total[3m]) >= 0 or increase(joules_total[3m]) < 0', eval_time: 3m, exp_samples: []}
      - {expr: 'count(increase(joules_total[3m]) != 1)', eval_time: 6m, exp_samples: [{value: 1}]}
      - {expr: 'increase(joules_total[3m]) >= 0 or increase(joules_total[3m]) < 0', eval_time: 6m, exp_samples: []}
YAML
usr/bin/promtool test rules tests.yml
