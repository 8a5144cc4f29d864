#!/bin/bash
# behaviour: With driver 580 on an H100 or H200, NVML answers for power, clocks, temperature and throttle reasons in 2 to
#   5 us, and for the energy counter in 3 ms, now and then 15: a thousand times as long. Both ways to the counter are as
#   slow, nvmlDeviceGetTotalEnergyConsumption and the fields 83 and 191 of nvmlDeviceGetFieldValues, which hold the same
#   number, so that a batch of fields that has both takes twice as long. (Field 190 beside it is the power limit.) A
#   reader that keeps to one percent of the time reads the counter three times a second, and misses two of three of its
#   changes.
# seen: driver 580.159.04, passed through to a virtual machine, no work on the GPU, median and 99 % of 200 reads:
#   H100:  power 3.0 us, 7.9 us    energy 3212 us, 15282 us    field 83 3406 us    field 191 as 83
#   H200:  power 1.7 us, 2.5 us    energy 3210 us, 15088 us    field 83 3343 us    field 191 as 83
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


def median_us(read):
    took = []
    for _ in range(200):
        began = time.perf_counter_ns()
        read()
        took.append((time.perf_counter_ns() - began) / 1e3)
        time.sleep(0.002)
    return statistics.median(took)


def field(number):
    return pynvml.nvmlDeviceGetFieldValues(gpu, [number])[0].value.ullVal


power = median_us(lambda: pynvml.nvmlDeviceGetPowerUsage(gpu))
energy = median_us(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu))
fields = [median_us(lambda: field(number)) for number in (83, 191)]
apart_mj = abs(field(83) - field(191))
print(f"{name}, {driver}: power {power:.1f} us, energy {energy:.0f} us, fields 83 and 191 {fields} us")
if power > 100 or min(energy, *fields) < 1000 or apart_mj > 200_000:
    print("the behaviour has changed")
    sys.exit(1)
PYTHON
