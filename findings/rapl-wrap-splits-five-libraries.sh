#!/bin/bash
# behaviour: The energy counter of a CPU package (RAPL) begins anew every 262 kJ, 22 minutes at 200 W. Two of five
#   libraries that measure with it get that moment right. pyJoules reports minus 262 kJ for the step in which it
#   happens. carbontracker takes that second as 0 W for all packages, also for those whose counters went on: its three
#   attempts compute with the same readings. Zeus asks a process that looks once a second: a window that ends before
#   it has looked is minus 262 kJ, and the next one 262 kJ too much. No error, and no warning.
# seen: pyJoules 0.5.1, carbontracker 2.4.7, zeus 0.16.0, codecarbon 3.3.2, perun 1.0.0. Package 0 begins anew in the
#   first of two steps of 1 s, and each package uses 200 J in each step:
#   pyJoules       package 0: -261943 200    package 1: 200 200
#   carbontracker  package 0:       0 200    package 1:   0 200
#   Zeus           package 0: -261943 262343
#   codecarbon     package 0:     200 200
#   perun          package 0:     200 200    package 1: 200 200
# needs: python3 with venv, PyPI. The counters are files in a folder of its own. Exits with 0 as long as the five do
#   so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check pyJoules==0.5.1 carbontracker==2.4.7 zeus==0.16.0 \
    codecarbon==3.3.2 perun==1.0.0
cat > wrap.py <<'PYTHON'
import contextlib
import itertools
import os
import pathlib
import sys
import time
import types

import numpy

RANGE_UJ = 262_143_328_850
# The counters of packages 0 and 1 before, between and after the two steps.
READINGS = [(261_993_328_850, 100_000_000_000), (50_000_000, 100_200_000_000), (250_000_000, 100_400_000_000)]
ZONES = pathlib.Path("powercap").resolve()


def write(file, text):
    """Replaces a file as a whole, so that another process reads the former text or this one."""
    beside = pathlib.Path(f"{file}.new")
    beside.write_text(f"{text}\n")
    os.replace(beside, file)


def count(readings):
    for package, reading in enumerate(readings):
        write(ZONES / f"intel-rapl:{package}" / "energy_uj", reading)


def expect(who, package, got, wanted):
    got = [round(float(joules)) for joules in got]
    print(f"{who:<14} package {package}: {got}")
    if got != wanted:
        sys.exit(f"expected {wanted}: the behaviour has changed")


def pyjoules():
    from pyJoules.device import rapl_device
    from pyJoules.energy_meter import EnergyMeter

    rapl_device.RAPL_API_DIR = str(ZONES)
    device = rapl_device.RaplDevice()
    device.configure(rapl_device.RaplDevice.available_domains())
    meter = EnergyMeter([device])
    count(READINGS[0])
    meter.start(tag="first")
    count(READINGS[1])
    meter.record(tag="second")
    count(READINGS[2])
    meter.stop()
    trace = list(meter.get_trace())
    expect("pyJoules", 0, [step.energy["package_0"] / 1e6 for step in trace], [-261943, 200])
    expect("pyJoules", 1, [step.energy["package_1"] / 1e6 for step in trace], [200, 200])


def carbontracker():
    from carbontracker.components.cpu import intel

    intel.RAPL_DIR = str(ZONES)
    cpu = intel.IntelCPU(pids=[], devices_by_pid=False)
    cpu.init()
    watts = []
    for before, after in zip(READINGS, READINGS[1:]):
        count(before)
        # It sleeps for a second between its readings.
        intel.time = types.SimpleNamespace(sleep=lambda _, after=after: count(after))
        watts.append(dict(zip(cpu.devices(), cpu.power_usage())))
    for package in (0, 1):
        expect("carbontracker", package, [step[f"cpu:{package}"] for step in watts], [0, 200])


def until(holds):
    for _ in range(600):
        if holds():
            return
        time.sleep(0.1)
    sys.exit("Zeus' process did not look within a minute")


def zeus():
    from zeus.device.cpu.rapl import RAPLFile

    count(READINGS[0])
    package = RAPLFile(str(ZONES / "intel-rapl:0"))
    package.read()
    noticed = package.wraparound_tracker.get_num_wraparounds
    # Readings that fall until it notices one show that its process has started.
    falling = itertools.count(1)
    until(lambda: write(package.energy_uj_path, 200_000_000_000 - next(falling)) or noticed() > 0)
    count(READINGS[0])
    time.sleep(3)
    before = noticed()
    mj = [package.read()]
    count(READINGS[1])
    mj.append(package.read())
    until(lambda: noticed() > before)
    count(READINGS[2])
    mj.append(package.read())
    package.wraparound_tracker._stop()
    expect("Zeus", 0, numpy.diff(mj) / 1e3, [-261943, 262343])


def codecarbon():
    with contextlib.redirect_stdout(sys.stderr):  # what it says of AMD's libraries
        from codecarbon.core.rapl import RAPLFile
        from codecarbon.core.units import Time

    folder = ZONES / "intel-rapl:0"
    count(READINGS[0])
    package = RAPLFile("package-0", str(folder / "energy_uj"), str(folder / "max_energy_range_uj"))
    joules = []
    for readings in READINGS[1:]:
        count(readings)
        package.delta(Time.from_seconds(1))
        joules.append(package.energy_delta.kWh * 3.6e6)
    expect("codecarbon", 0, joules, [200, 200])


def perun():
    from perun.backend import powercap_rapl
    from perun.data_model.data import RawData
    from perun.data_model.measurement_type import Magnitude, MetricMetaData, Unit
    from perun.processing import processEnergyData

    powercap_rapl.RAPL_PATH = str(ZONES)
    times = MetricMetaData(
        Unit.SECOND, Magnitude.ONE, numpy.dtype("float32"), numpy.float32(0), numpy.float32(1e9), numpy.float32(-1)
    )
    for package in (0, 1):
        values = []
        for readings in READINGS:
            count(readings)
            # It keeps a file open, and this has replaced it.
            backend = powercap_rapl.PowercapRAPLBackend()
            backend.setup()
            (sensor,) = backend.getSensors({f"cpu_{package}_package-{package}"})
            values.append(sensor.read())
            backend.close()
        series = RawData(numpy.arange(3, dtype="float32"), numpy.array(values), times, sensor.dataType)
        processEnergyData(series)
        # The power of each step of a second; the first of the three values is the second once more.
        expect("perun", package, series.values[1:], [200, 200])


if __name__ == "__main__":
    for package in (0, 1):
        folder = ZONES / f"intel-rapl:{package}"
        folder.mkdir(parents=True)
        write(folder / "name", f"package-{package}")
        write(folder / "max_energy_range_uj", RANGE_UJ)
    count(READINGS[0])
    for library in (pyjoules, carbontracker, zeus, codecarbon, perun):
        library()
PYTHON
# They warn of GPUs and services that this does not need.
venv/bin/python wrap.py 2> warnings.log || { cat warnings.log >&2; exit 1; }
