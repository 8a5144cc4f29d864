#!/bin/bash
# behaviour: pyJoules documents that a trace has µJ for every device, and it hands on what each driver counts: µJ of a
#   CPU, and mJ of an NVIDIA GPU. So a GPU counts a thousandth of what it used, in a sum over devices as in a comparison
#   of them, and a training on GPUs looks like one on CPUs. Its CSV has no unit, and is appended to without a look at
#   the header: after a run that measures the same devices in another order, the column of the GPU has the µJ of the
#   CPU, and both orders are in one file.
# seen: pyJoules 0.5.1. A CPU and a GPU use 200 J each; the GPU's driver is a stand-in that counts mJ, as NVML's
#   documentation of nvmlDeviceGetTotalEnergyConsumption says:
#   trace:  package_0 200000000.0    nvidia_gpu_0 200000    their sum as µJ: 200.2 J
#   CSV:    header nvidia_gpu_0;package_0    first run 200000;200000000.0    second run 200000000.0;200000
# needs: python3 with venv, PyPI. The CPU's counters are files in a folder of its own. Exits with 0 as long as pyJoules
#   does so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check pyJoules==0.5.1

cat > pynvml.py <<'PYTHON'
class NVMLError(Exception):
    pass


counted_mj = 0


def nvmlInit():
    pass


def nvmlDeviceGetCount():
    return 1


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetTotalEnergyConsumption(handle):
    return counted_mj
PYTHON
cat > measure.py <<'PYTHON'
import importlib.metadata
import pathlib
import sys

import pynvml
from pyJoules.device import rapl_device
from pyJoules.device.nvidia_device import NvidiaGPUDevice
from pyJoules.energy_meter import EnergyMeter
from pyJoules.handler.csv_handler import CSVHandler

ZONES = pathlib.Path("powercap").resolve()
PACKAGE = ZONES / "intel-rapl:0"


def expect(what, got, wanted):
    print(f"{what}: {got}")
    if got != wanted:
        sys.exit(f"expected {wanted}: the behaviour has changed")


def measured(kinds):
    """The trace of a step in which the CPU and the GPU use 200 J each."""
    devices = []
    for kind in kinds:
        device = kind()
        device.configure(kind.available_domains())
        devices.append(device)
    meter = EnergyMeter(devices)
    (PACKAGE / "energy_uj").write_text("1000000000\n")
    pynvml.counted_mj = 5_000_000
    meter.start(tag="step")
    (PACKAGE / "energy_uj").write_text("1200000000\n")
    pynvml.counted_mj = 5_200_000
    meter.stop()
    return meter.get_trace()


PACKAGE.mkdir(parents=True)
(PACKAGE / "name").write_text("package-0\n")
rapl_device.RAPL_API_DIR = str(ZONES)

documented = importlib.metadata.metadata("pyJoules").get_payload()
expect("the unit that it documents", [word for word in ("uJ", "mJ") if f"`device_name` in {word}" in documented], ["uJ"])
(step,) = measured([rapl_device.RaplDevice, NvidiaGPUDevice])
expect("trace", step.energy, {"package_0": 200_000_000.0, "nvidia_gpu_0": 200_000})
expect("the sum as µJ, in J", sum(step.energy.values()) / 1e6, 200.2)

for kinds in ([NvidiaGPUDevice, rapl_device.RaplDevice], [rapl_device.RaplDevice, NvidiaGPUDevice]):
    handler = CSVHandler("steps.csv")
    handler.process(measured(kinds))
    handler.save_data()
rows = [line.split(";")[3:] for line in pathlib.Path("steps.csv").read_text().splitlines()]
expect("CSV", rows, [["nvidia_gpu_0", "package_0"], ["200000", "200000000.0"], ["200000000.0", "200000"]])
PYTHON
PYTHONPATH=$work venv/bin/python measure.py
