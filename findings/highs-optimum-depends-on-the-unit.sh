#!/bin/bash
# behaviour: an integer program that gives each instruction of a step one of its clocks has another "optimum" in another
#   unit. scipy's milp (HiGHS) stops at a gap of 1e-4 of the objective or of 1e-6 of its unit, whichever comes first,
#   and mip_rel_gap=0 turns off the first only. With energies in MJ or kWh, 1e-6 is a joule and more: the answer
#   "Optimal" is dearer than the same program's answer in joules, although a gap of 0 was asked for. No option of milp
#   sets the other gap; mip_gap of the result shows what was lost. Times have the same fate: a constraint holds to
#   within 1e-6 of its unit, so that a deadline in hours is missed by milliseconds, and the plan looks cheaper
#   than the optimum. Joules and seconds, or their thousandths, are safe; the result says success in every case.
# seen: scipy 1.17.1, numpy 2.4.6, Python 3.11. 8 steps of 40 instructions, 8 clocks each; the optimum by dynamic
#   programming over all sums of times; mip_rel_gap=0 everywhere:
#   energy in J: 0 of 8 are dearer, by up to 0.000 %
#   energy in MJ: 6 of 8 are dearer, by up to 0.097 %
#   energy in kWh: 6 of 8 are dearer, by up to 0.097 %
#   deadline in s: 0 of 8 are late, by up to 0.0 ms, 0.000 % cheaper
#   deadline in h: 8 of 8 are late, by up to 3.2 ms, 0.048 % cheaper
#   failures that milp reports: 0
# needs: python3 with venv, PyPI. Exits with 0 as long as scipy behaves so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check scipy==1.17.1 numpy==2.4.6
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy
from scipy.optimize import Bounds, LinearConstraint, milp

INSTRUCTIONS, CLOCKS = 40, 8
TICK_S = 1e-4
failures = 0


def step(seed):
    """Times in ticks and energies in mJ of each instruction at each clock, and the most ticks."""
    random = numpy.random.default_rng(seed)
    times = numpy.zeros((INSTRUCTIONS, CLOCKS), int)
    energies = numpy.zeros((INSTRUCTIONS, CLOCKS), int)
    for row in range(INSTRUCTIONS):
        at_most_us, watts = random.integers(40_000, 90_000), random.uniform(250, 400)
        for column in range(CLOCKS):
            clock = 1 - 0.06 * column
            times[row, column] = round(at_most_us * (0.25 + 0.75 / clock)) // 100
            joules = at_most_us * 1e-6 * watts * (0.45 * clock**2 + 0.2 + 0.35 / clock)
            energies[row, column] = round(joules * 1000)
    return times, energies, int(times[:, 0].sum() * 1.1)


def exact_mj(times, energies, most):
    """The least energy, of all sums of ticks up to the most."""
    never = 10**15
    best = numpy.full(most + 1, never)
    best[0] = 0
    for row in range(INSTRUCTIONS):
        after = numpy.full(most + 1, never)
        for column in range(CLOCKS):
            takes = times[row, column]
            numpy.minimum(after[takes:], best[: most + 1 - takes] + energies[row, column], out=after[takes:])
        best = after
    return best.min()


def solved(step, per_mj, per_tick):
    """Energy in mJ and lateness in ticks of the plan that milp calls optimal, with these units."""
    global failures
    times, energies, most = step
    one_each = numpy.kron(numpy.eye(INSTRUCTIONS), numpy.ones(CLOCKS))
    found = milp(
        energies.ravel() * per_mj,
        integrality=numpy.ones(times.size),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(times.ravel()[None, :] * per_tick, -numpy.inf, most * per_tick),
        ],
        options={"mip_rel_gap": 0},
    )
    failures += found.status != 0
    chosen = numpy.round(found.x).astype(int)
    return int((energies.ravel() * chosen).sum()), int((times.ravel() * chosen).sum()) - most


def expect(what, shown, as_seen):
    print(f"{what}: {shown}")
    if not as_seen:
        print("the behaviour has changed")
        sys.exit(1)


steps = [step(seed) for seed in range(8)]
least = [exact_mj(*each) for each in steps]


def dearer(per_mj):
    found = [solved(each, per_mj, TICK_S) for each in steps]
    assert all(late <= 0 for _, late in found)
    return [energy / best - 1 for (energy, _), best in zip(found, least)]


def late(per_tick):
    found = [solved(each, 1e-3, per_tick) for each in steps]
    cheaper = max(1 - energy / best for (energy, _), best in zip(found, least))
    return [ticks * TICK_S * 1e3 for _, ticks in found], cheaper


for unit, per_mj in [("J", 1e-3), ("MJ", 1e-9), ("kWh", 1e-3 / 3.6e6)]:
    over = dearer(per_mj)
    text = f"{sum(share > 0 for share in over)} of 8 are dearer, by up to {max(over) * 100:.3f} %"
    expect(f"energy in {unit}", text, max(over) == 0 if unit == "J" else max(over) > 1e-4)
for unit, per_tick in [("s", TICK_S), ("h", TICK_S / 3600)]:
    by_ms, cheaper = late(per_tick)
    text = f"{sum(ms > 0 for ms in by_ms)} of 8 are late, by up to {max(0, max(by_ms)):.1f} ms"
    text += f", {cheaper * 100:.3f} % cheaper"
    expect(f"deadline in {unit}", text, max(by_ms) <= 0 if unit == "s" else max(by_ms) > 0.5)
expect("failures that milp reports", failures, failures == 0)
PYTHON
