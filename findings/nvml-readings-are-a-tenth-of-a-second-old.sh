#!/bin/bash
# behaviour: With driver 580 on an H100 or H200, the "instant" power (field 186), the power usage and the SM clock that NVML
#   returns change ten times a second however often they are read: the driver answers from what it looked up within the
#   last 100 ms. Instant power is a glance of some 20 ms once in 100 ms, so that its mean over work that repeats near that
#   rhythm is off by a fifth (20 ms of copies in 101 ms: 136 W, energy counter 170 W; 50 ms in 101 ms: 308 W, counter
#   242 W). nvmlDeviceGetPowerUsage is a mean over the last second. Finer is nvmlDeviceGetSamples(NVML_TOTAL_POWER_SAMPLES):
#   one value every 20 ms, for the last 2.4 s.
# seen: driver 580.159.04, passed through to a virtual machine:
#   H100, H200: 5 s of reads every ms   power usage changed every 101 ms   119 samples, 20 ms apart
# needs: an H100 or H200 with driver 580; python3 with venv, PyPI. Exits with 0 as long as the driver behaves so, and with
#   77 without such a GPU.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check nvidia-ml-py==13.615.71
"$work/venv/bin/python" - <<'PYTHON'
import statistics
import sys
import time

import pynvml


def needs_gpu(why):
    print(f"needs a GPU: an H100 or H200 with driver 580 ({why})")
    sys.exit(77)


try:
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
except pynvml.NVMLError as error:
    needs_gpu(error)
name, driver = pynvml.nvmlDeviceGetName(gpu), pynvml.nvmlSystemGetDriverVersion()
if not any(model in name for model in ("H100", "H200")) or not driver.startswith("580."):
    needs_gpu(f"this is {name} with {driver}")

changes, last = [], None
until = time.monotonic() + 5
while time.monotonic() < until:
    power = pynvml.nvmlDeviceGetPowerUsage(gpu)
    if power != last:
        changes.append(time.monotonic())
        last = power
    time.sleep(0.001)
every_ms = statistics.median(b - a for a, b in zip(changes, changes[1:])) * 1e3
_, samples = pynvml.nvmlDeviceGetSamples(gpu, pynvml.NVML_TOTAL_POWER_SAMPLES, 0)
times = [sample.timeStamp for sample in samples]
apart_ms = statistics.median(b - a for a, b in zip(times, times[1:])) / 1e3
print(f"{name}, {driver}: power usage changed every {every_ms:.0f} ms, {len(times)} samples {apart_ms:.0f} ms apart")
if not 90 <= every_ms <= 250 or not 10 <= apart_ms <= 40:
    print("the behaviour has changed")
    sys.exit(1)
PYTHON
