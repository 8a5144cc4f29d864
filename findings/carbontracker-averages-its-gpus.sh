#!/bin/bash
# behaviour: carbontracker takes the mean over the GPUs where it should add them. It puts the watts of all GPUs of a
#   sample into one list of numbers, and the energy of an epoch is the mean of that list times the epoch's time. So a
#   node of eight GPUs is billed as one, its kWh and CO2e are an eighth, and a job on more GPUs looks as if it saved
#   energy. With one GPU all is right.
# seen: carbontracker 2.4.7; GPUs of 400 W each, by a stand-in for the module of NVML, an epoch of one hour:
#   1 GPU: 0.4 kWh    2 GPUs: 0.4 kWh    8 GPUs: 0.4 kWh    1 GPU of 400 W and 7 of 100 W: 0.1375 kWh, not 1.1
# needs: python3 with venv, PyPI. Exits with 0 as long as carbontracker does so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check carbontracker==2.4.7
cat > node.py <<'PYTHON'
import os
import sys
import types

# What carbontracker calls of NVML's module, with GPUs of these watts.
watts = []
pynvml = types.ModuleType("pynvml")
pynvml.NVMLError = type("NVMLError", (Exception,), {})
pynvml.nvmlInit = pynvml.nvmlShutdown = lambda: None
pynvml.nvmlDeviceGetCount = lambda: len(watts)
pynvml.nvmlDeviceGetHandleByIndex = lambda index: index
pynvml.nvmlDeviceGetPowerUsage = lambda handle: watts[handle] * 1000
sys.modules["pynvml"] = pynvml
os.environ.pop("CUDA_VISIBLE_DEVICES", None)

from carbontracker.components.component import Component  # noqa: E402


def kwh_of_an_hour(*of_gpus):
    watts[:] = of_gpus
    gpus = Component("gpu", pids=[], devices_by_pid=False, logger=None)
    gpus.init()
    for _ in range(3):
        gpus.collect_power_usage(epoch=1)
    (kwh,) = gpus.energy_usage([3600])
    return round(float(kwh), 6)


for of_gpus, wanted in (([400], 0.4), ([400] * 2, 0.4), ([400] * 8, 0.4), ([400] + [100] * 7, 0.1375)):
    got = kwh_of_an_hour(*of_gpus)
    print(f"GPUs of {of_gpus} W, one hour: {got} kWh, in truth {sum(of_gpus) / 1000}")
    if got != wanted:
        sys.exit(f"expected {wanted}: the behaviour has changed")
PYTHON
venv/bin/python node.py
