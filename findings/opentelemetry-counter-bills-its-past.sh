#!/bin/bash
# behaviour: An observable counter of OpenTelemetry that returns a GPU's energy, which the driver counts since it was
#   loaded, makes the first export a bill for all of that time: with delta temporality the first delta is the whole
#   counter, and with cumulative temporality the value is the whole counter while its start time is when the exporter
#   began. Each restart of the exporter bills it again. When the driver is loaded anew and counts from 0, the SDK of
#   Python exports a negative delta of a sum that it calls monotonic, so that sums of deltas lose what was counted;
#   JavaScript's exports what was counted since. With cumulative temporality, a reading that is missing is a gap in
#   Python and the former value again in JavaScript.
# seen: opentelemetry-sdk 1.45.2 (PyPI), @opentelemetry/sdk-metrics 2.12.1 (npm), readings in J, - is a missing one:
#   1000000 1000100 50 150  deltas       Python 1000000 100 -1000050 100   JavaScript 1000000 100 50 100
#   the same after a restart: 1000150 1000250  deltas  1000150 100 from both
#   1000000 - 1000300       cumulative   Python 1000000 - 1000300          JavaScript 1000000 1000000 1000300
# needs: python3 with venv, PyPI, node with npm, npm's registry. Exits with 0 as long as both SDKs do so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check opentelemetry-sdk==1.45.2
npm install --silent --no-audit --no-fund --prefix . @opentelemetry/sdk-metrics@2.12.1 \
    @opentelemetry/api@1.9.0 > npm.log

cat > python.py <<'PYTHON'
import sys
import time

from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader

temporality, readings = AggregationTemporality[sys.argv[1]], sys.argv[2:]
coming = iter(readings)
began = time.time_ns()


def read(_):
    reading = next(coming)
    return [] if reading == "-" else [Observation(int(reading))]


reader = InMemoryMetricReader(preferred_temporality={ObservableCounter: temporality})
meter = MeterProvider(metric_readers=[reader]).get_meter("gpu")
meter.create_observable_counter("gpu.energy", [read], unit="J")
exported, starts = [], set()
for _ in readings:
    data = reader.get_metrics_data()
    point = None
    if data is not None:
        metric = data.resource_metrics[0].scope_metrics[0].metrics[0].data
        assert metric.is_monotonic
        point = metric.data_points[0]
        starts.add(point.start_time_unix_nano)
    exported.append("-" if point is None else str(point.value))
# The start of a cumulative sum is that of this process, whatever the counter has counted before.
assert temporality is AggregationTemporality.DELTA or (len(starts) == 1 and min(starts) >= began)
print(*exported)
PYTHON
cat > javascript.mjs <<'JAVASCRIPT'
import { AggregationTemporality, MeterProvider, MetricReader } from '@opentelemetry/sdk-metrics';

class Reader extends MetricReader {
  async onForceFlush() {}
  async onShutdown() {}
}
const [temporality, ...readings] = process.argv.slice(2);
const reader = new Reader({ aggregationTemporalitySelector: () => AggregationTemporality[temporality] });
const meter = new MeterProvider({ readers: [reader] }).getMeter('gpu');
const coming = readings.values();
meter.createObservableCounter('gpu.energy', { unit: 'J' }).addCallback((result) => {
  const reading = coming.next().value;
  if (reading !== '-') result.observe(Number(reading));
});
const exported = [];
for (const _ of readings) {
  const { resourceMetrics } = await reader.collect();
  exported.push(resourceMetrics.scopeMetrics[0]?.metrics[0]?.dataPoints[0]?.value ?? '-');
}
console.log(exported.join(' '));
JAVASCRIPT

# expect TEMPORALITY READINGS PYTHON JAVASCRIPT
expect() {
    local readings got
    read -ra readings <<< "$2"
    got="$(venv/bin/python python.py "$1" "${readings[@]}") | $(node javascript.mjs "$1" "${readings[@]}")"
    printf '%-10s of %-25s  Python | JavaScript: %s\n' "$1" "$2" "$got"
    [ "$got" = "$3 | $4" ] || { echo "expected $3 | $4: the behaviour has changed" >&2; exit 1; }
}
expect DELTA '1000000 1000100 50 150' '1000000 100 -1000050 100' '1000000 100 50 100'
expect DELTA '1000150 1000250' '1000150 100' '1000150 100'
expect CUMULATIVE '1000000 - 1000300' '1000000 - 1000300' '1000000 1000000 1000300'
