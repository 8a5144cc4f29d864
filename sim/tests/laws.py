"""Holds the simulator against a second computation of its laws. Run by laws.rs: with the simulated
trainer, and with how the GPU is cooled.

Nothing here is read from the simulator's code: the laws and their constants are written down once more,
from the published facts that sim/README.md names, and what the simulated GPU does is seen through NVML
only, as on a real one.
"""

import statistics
import subprocess
import sys
import time

import pynvml as nvml

TRAINER, COOLING = sys.argv[1:]

# A100 SXM4, 40 GB. Dense work at 1410 MHz would draw 475 W; the board may draw 400 W.
PEAK_W, LIMIT_W, IDLE_W = 475.0, 400.0, 54.0
HIGHEST_MHZ, STEP_MHZ = 1410, 15
# Cooling: air of 28 degrees, 0.09 K/W, 40 s; 0.12 % of power for each degree from 60 on.
AIR_C, KELVIN_PER_WATT, SECONDS, PER_KELVIN, AT_C = 28.0, 0.09, 40.0, 0.0012, 60.0
# Poor cooling: air of 45 degrees, and 97 for a GPU that draws its limit. From 85 degrees on, one clock
# less for each tenth of a degree.
HOT_AIR_C, HOT_KELVIN_PER_WATT, SLOWS_AT_C, CLOCKS_PER_KELVIN = 45.0, (97 - 45) / LIMIT_W, 85.0, 10
THERMAL_BIT, THERMAL_COUNTER = 0x20, 269
# The energy counter is refreshed ten times a second.
REFRESH_S = 0.1


def work_w(mhz, celsius):
    """Power of a backward: a constant part, one with the clock, one with the voltage of high clocks."""
    x = mhz / HIGHEST_MHZ
    return PEAK_W * (0.27 + 0.316 * x + 0.414 * x**6) * (1 + PER_KELVIN * (celsius - AT_C))


def clock(gpu):
    return nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)


def watts(gpu):
    return nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3


def joules(gpu):
    return nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3


def celsius(gpu):
    return nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)


def look(gpu):
    """A row of (time, watts, MHz, degrees, joules)."""
    return time.monotonic(), watts(gpu), clock(gpu), celsius(gpu), joules(gpu)


def watch(gpu, seconds):
    """Rows as of `look`."""
    rows, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        rows.append(look(gpu))
        time.sleep(0.004)
    return rows


def unlimited_work_runs_into_the_power_limit(rows):
    beside = []
    for _, power, mhz, degrees, _ in rows:
        assert power <= LIMIT_W + 0.01, f"{power} W"
        # Forwards draw a hundredth less than backwards, so both their clocks are right.
        clocks = range(210, HIGHEST_MHZ + 1, STEP_MHZ)
        possible = max(step for step in clocks if 0.985 * work_w(step, degrees) <= LIMIT_W)
        if abs(mhz - possible) > STEP_MHZ:
            beside.append(f"{mhz} MHz at {degrees} C, not {possible}")
    # Some rows are from between two instructions, where the GPU waits at its highest clock.
    assert len(beside) < 0.05 * len(rows), beside


def the_counter_is_the_integral_of_the_power(rows):
    # From one refresh to another: in between it stands still.
    changes = [b for a, b in zip(rows, rows[1:]) if b[4] != a[4]]
    first, last = changes[0], changes[-1]
    inside = [row for row in rows if first[0] <= row[0] <= last[0]]
    integral = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in zip(inside, inside[1:]))
    counted = last[4] - first[4]
    assert abs(counted / integral - 1) < 0.02, f"{counted} J counted, {integral} J drawn"
    period = (last[0] - first[0]) / (len(changes) - 1)
    assert period > 0.95 * REFRESH_S, f"refreshed every {period} s"


def the_temperature_follows_the_power(rows):
    degrees = rows[0][3] + 0.5
    for before, after in zip(rows, rows[1:]):
        goal = AIR_C + KELVIN_PER_WATT * before[1]
        degrees += (goal - degrees) * (after[0] - before[0]) / SECONDS
    assert abs(degrees - rows[-1][3] - 0.5) < 1.5, f"{degrees} C, shown {rows[-1][3]} C"
    assert rows[-1][3] > rows[0][3] + 2, "it does not warm up"


def time_to(gpu, mhz):
    """Seconds that the call took, and seconds from its begin to the clock."""
    begin = time.monotonic()
    nvml.nvmlDeviceSetGpuLockedClocks(gpu, mhz, mhz)
    returned = time.monotonic()
    while clock(gpu) not in (mhz, mhz - STEP_MHZ):
        assert time.monotonic() < begin + 5, f"{clock(gpu)} MHz, {mhz} MHz asked for"
    return returned - begin, time.monotonic() - begin


def calls_block_and_low_clocks_take_longer(gpu):
    calls, low, high = [], [], []
    for _ in range(20):
        for mhz, settled in ((405, low), (1200, high)):
            call, settling = time_to(gpu, mhz)
            calls.append(call)
            settled.append(settling)
    # 10 to 20 ms are reported; whatever else the machine does makes it longer.
    assert statistics.median(calls) > 0.010 and min(calls) > 0.005, calls
    assert max(calls) > 1.2 * statistics.median(calls), f"no tail: {calls}"
    # From begin to the clock it is at least the call, so that only a low clock shows the rest.
    assert statistics.median(low) > statistics.median(calls), (low, calls)


def some_clocks_are_held_one_step_lower(gpu):
    held = {}
    for mhz in range(900, 960, STEP_MHZ):
        nvml.nvmlDeviceSetGpuLockedClocks(gpu, mhz, mhz)
        time.sleep(0.15)
        held[mhz] = clock(gpu)
    assert all(mhz - got in (0, STEP_MHZ) for mhz, got in held.items()), held
    assert 0 < sum(mhz != got for mhz, got in held.items()) < len(held), held


def slowed_ns(gpu):
    return nvml.nvmlDeviceGetFieldValues(gpu, [THERMAL_COUNTER])[0].value.ullVal


def a_hot_gpu_is_slowed_until_it_is_no_hotter(gpu):
    """It begins at about 85 degrees; NVML shows whole ones, so that 86 is known when it is reached."""
    counted, before, degrees, slow_s, rows = slowed_ns(gpu), look(gpu), 0.0, 0.0, []
    end = before[0] + 12
    while before[0] < end:
        is_slow = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) & THERMAL_BIT != 0
        time.sleep(0.004)
        row = look(gpu)
        goal = HOT_AIR_C + HOT_KELVIN_PER_WATT * before[1]
        degrees += (goal - SLOWS_AT_C - degrees) * (row[0] - before[0]) / SECONDS
        slow_s += (row[0] - before[0]) * is_slow
        rows.append((degrees, row[2], row[3], is_slow))
        before = row
    begin_c = 86 - next(degrees for degrees, _, shown, _ in rows if shown == 86)
    beside = []
    for degrees, mhz, _, is_slow in rows:
        beyond = max(0, begin_c + degrees - SLOWS_AT_C)
        possible = HIGHEST_MHZ - STEP_MHZ * int(CLOCKS_PER_KELVIN * beyond)
        # Two clocks more or less: the sum of this loop is coarser than the simulator's.
        if mhz > possible + 2 * STEP_MHZ or is_slow and mhz < possible - 2 * STEP_MHZ:
            beside.append(f"{mhz} MHz at {SLOWS_AT_C + beyond} C, not {possible}")
    assert len(beside) < 0.05 * len(rows), beside
    assert slow_s > 3, f"slowed for {slow_s} s only"
    counted_s = (slowed_ns(gpu) - counted) / 1e9
    assert abs(counted_s / slow_s - 1) < 0.1, f"{counted_s} s counted, {slow_s} s seen"


def main():
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    assert abs(watts(gpu) - IDLE_W) < 0.01
    arguments = ["launch", "--no-pfo", "--stages", "1", "--gpus", "0", "--steps", "0"]
    trainer = subprocess.Popen([TRAINER, *arguments], stdout=subprocess.DEVNULL)
    try:
        while watts(gpu) < 2 * IDLE_W:
            time.sleep(0.01)
        if COOLING == "poor":
            a_hot_gpu_is_slowed_until_it_is_no_hotter(gpu)
            return
        rows = watch(gpu, 6)
        unlimited_work_runs_into_the_power_limit(rows)
        the_counter_is_the_integral_of_the_power(rows)
        the_temperature_follows_the_power(rows)
        calls_block_and_low_clocks_take_longer(gpu)
        some_clocks_are_held_one_step_lower(gpu)
    finally:
        trainer.terminate()
        trainer.wait()


main()
