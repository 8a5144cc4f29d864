#!/bin/bash
# behaviour: lowtime, the solver of Perseus, floors every measured time to its unit, and reports a plan's iteration
#   time as the sum of floored times. With the clocks that it assigns, an iteration takes longer than reported, by up
#   to a unit for each operation of the critical path: a plan that is looked up for a deadline misses it by
#   percents. Three details add to it: a float that is an exact multiple of the unit may lose a
#   whole unit (0.3 // 0.1 is 2); clocks that floor to the same unit are reduced to the dearest one; and the frontier
#   never contains the slowest, cheapest schedule from which the solver starts.
# seen: lowtime 0.3.0, Python 3.11. A chain of 8 operations, 9 clocks each, unit 1 ms:
#   units of 0.1 s to 1 s by 0.1 s: [1, 2, 2, 4, 4, 5, 6, 8, 8, 9]
#   70 of 72 plans are later than reported; the fastest one: reported 88 ms, with its own clocks 95.2 ms, 8.2 % later
#   slowest plan reported: 159 ms; where the solver starts: 160 ms
# needs: python3 with venv, PyPI. Exits with 0 as long as lowtime behaves so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check lowtime==0.3.0 networkx==3.6.1 \
    numpy==2.4.6 scipy==1.17.1 matplotlib==3.11.2
"$work/venv/bin/python" - <<'PYTHON'
import sys

import networkx
from lowtime.cost_model import ExponentialModel
from lowtime.operation import CandidateExecutionOptions, DummyOperation, ExecutionOption, Operation, OperationSpec
from lowtime.solver import PhillipsDessouky

UNIT_S = 0.001
OPERATIONS = 8


def expect(what, got, wanted):
    print(f"{what}: {got}")
    if got != wanted:
        print(f"expected {wanted}: the behaviour has changed")
        sys.exit(1)


tenths = [ExecutionOption(real_time=k / 10, unit_time=0.1, cost=1.0, knob=k).quant_time for k in range(1, 11)]
expect("units of 0.1 s to 1 s", tenths, [1, 2, 2, 4, 4, 5, 6, 8, 8, 9])

# Time in seconds and energy in joules of one operation, by clock in MHz.
profile = {mhz: (0.0119 + 0.0109 * (1980 / mhz - 1), 3 + 2 * (mhz / 1980) ** 2.2) for mhz in range(1980, 1000, -90)}
options = CandidateExecutionOptions(
    options=[ExecutionOption(real_time=s, unit_time=UNIT_S, cost=j, knob=mhz) for mhz, (s, j) in profile.items()]
)
kept = {option.knob for option in options.options}
expect("clocks left out, though none is dominated", sorted(profile.keys() - kept), [1440, 1800])

spec = OperationSpec(options=options, cost_model=ExponentialModel(options))
graph = networkx.DiGraph(source_node=0, sink_node=OPERATIONS + 1)
graph.add_node(0, op=DummyOperation())
graph.add_node(OPERATIONS + 1, op=DummyOperation())
chain = [Operation(spec) for _ in range(OPERATIONS)]
for place, operation in enumerate(chain, 1):
    graph.add_node(place, op=operation)
networkx.add_path(graph, range(OPERATIONS + 2))

start_ms = OPERATIONS * max(option.quant_time for option in options.options)
plans = []
for plan in PhillipsDessouky(graph).run():
    taken = sum(profile[operation.assigned_knob][0] for operation in chain)
    plans.append((round(plan.real_time * 1e3), round(taken * 1e3, 1)))
reported, taken = plans[-1]
expect("plans, and how many are later than reported", (len(plans), sum(taken > ms for ms, taken in plans)), (72, 70))
expect("fastest plan, reported and taken, ms", (reported, taken), (88, 95.2))
expect("where the solver starts, and its slowest plan, ms", (start_ms, plans[0][0]), (160, 159))
PYTHON
