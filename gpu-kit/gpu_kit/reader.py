"""Reads as an energy tool does, in a process of its own, until standard input ends."""

from __future__ import annotations

import json
import select
import sys
import time

from gpu_kit.nvml import ENERGY, INSTANT, REASONS, SM_CLOCK, Nvml


def _main(library: str, index: str, looks_per_second: str, what: str) -> None:
    nvml = Nvml(library, int(index))
    wanted = [ENERGY] if what == "energy" else [ENERGY, SM_CLOCK, INSTANT, REASONS]
    readers = [nvml.reader(each) for each in wanted]
    period_s = 1 / float(looks_per_second) if float(looks_per_second) else 0.0
    print(json.dumps({}), flush=True)
    looks, busy_ns, began, due = 0, 0, time.monotonic(), time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        look = time.monotonic_ns()
        for read in readers:
            read()
        busy_ns += time.monotonic_ns() - look
        looks += 1
        due = max(due + period_s, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
    lasted = time.monotonic() - began
    print(
        json.dumps({"looks": looks, "calls": looks * len(readers), "lasted_s": lasted, "in_driver_s": busy_ns / 1e9})
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
