#!/usr/bin/env python3
"""Runs lowtime on a profile, as its users do, and says how long each part took.

usage: run_lowtime.py PROFILE.csv MICROBATCHES P2P_WATTS UNIT_TIME_S raw|effective 1f1b|gpipe OUT_DIR

raw or effective: which energy slower options have to lower to be candidates. Perseus' artifact
takes the measured energy, the script that comes with Zeus what is left of it without the
P2P-blocking power.

Writes a plan file for each point of the frontier, `claims.csv` (time, energy: what lowtime says
of each, in the order of the plan files) and prints one JSON line of seconds.
"""
import csv
import json
import sys
import time
from pathlib import Path

began = time.perf_counter()

import networkx as nx
from lowtime.cost_model import ExponentialModel
from lowtime.graph_utils import add_sink_node, add_source_node
from lowtime.operation import CandidateExecutionOptions, ExecutionOption, OperationSpec
from lowtime.perseus.instruction import Backward, Forward
from lowtime.perseus.schedule import PipelineSchedule, Synchronous1F1B
from lowtime.solver import PhillipsDessouky

SOURCE, SINK = "source", "sink"
# Both scripts retry with this much tolerance where noise leaves too few options to fit.
TOO_FEW, NOISE_FACTOR = 3, 0.95


def candidates(rows, power_w, unit_s, filter_effective):
    options = [ExecutionOption(float(r["time"]), unit_s, float(r["energy"]), int(float(r["frequency"])))
               for r in rows]

    def without_waiting(these):
        for option in these:
            option.cost -= power_w * option.quant_time * option.unit_time

    if filter_effective:
        without_waiting(options)
    found = CandidateExecutionOptions(options)
    if len(found.options) <= TOO_FEW:
        found = CandidateExecutionOptions(options, noise_factor=NOISE_FACTOR)
    if not filter_effective:
        without_waiting(found.options)
    return found


def specs(profile, power_w, unit_s, filter_effective):
    tables = {}
    with open(profile, newline="") as file:
        for row in csv.DictReader(file):
            tables.setdefault((int(row["stage"]), row["instruction"]), []).append(row)
    kinds = {"forward": Forward, "backward": Backward}
    stages = [{} for _ in range(1 + max(stage for stage, _ in tables))]
    for (stage, name), rows in tables.items():
        if name in kinds:
            options = candidates(rows, power_w, unit_s, filter_effective)
            fit = ExponentialModel(options, search_strategy="best")
            stages[stage][kinds[name]] = OperationSpec(options, fit)
    return stages


class GPipe(PipelineSchedule):
    """All forwards, then all backwards: a schedule of ours, through lowtime's interface for others."""

    def __iter__(self):
        for kind in (Forward, Backward):
            for microbatch in range(self.num_micro_batches):
                yield kind(spec=self.op_spec_map[kind], stage_id=self.stage_id, micro_batch_id=microbatch)


SCHEDULES = {"1f1b": Synchronous1F1B, "gpipe": GPipe}


def pipeline(stages, microbatches, schedule):
    """The graph, and each stage's instructions in order."""
    dag = nx.DiGraph(source_node=SOURCE, sink_node=SINK)
    orders = []
    for stage, spec in enumerate(stages):
        runs = SCHEDULES[schedule](len(stages), microbatches, stage, spec)
        order = [(type(op).__name__.lower(), stage, op.micro_batch_id, op) for op in runs]
        dag.add_nodes_from((node[:3], {"op": node[3]}) for node in order)
        nx.add_path(dag, [node[:3] for node in order])
        orders.append(order)
    for stage in range(len(stages) - 1):
        for microbatch in range(microbatches):
            dag.add_edge(("forward", stage, microbatch), ("forward", stage + 1, microbatch))
            dag.add_edge(("backward", stage + 1, microbatch), ("backward", stage, microbatch))
    add_source_node(dag, SOURCE)
    add_sink_node(dag, SINK)
    return dag, [[(name, op) for name, _, _, op in order] for order in orders]


def main():
    profile, microbatches, power_w, unit_s, energy, schedule, out = sys.argv[1:]
    power_w, unit_s, out = float(power_w), float(unit_s), Path(out)
    imported = time.perf_counter()
    stages = specs(profile, power_w, unit_s, energy == "effective")
    dag, orders = pipeline(stages, int(microbatches), schedule)
    prepared = time.perf_counter()
    claims, solving = [], 0.0
    frontier = PhillipsDessouky(dag).run()
    while True:
        asked = time.perf_counter()
        point = next(frontier, None)
        solving += time.perf_counter() - asked
        if point is None:
            break
        text = "".join(f"{[(name, op.assigned_knob) for name, op in order]},\n" for order in orders)
        (out / f"freqs_pipeline_{len(claims):05}.py").write_text(f"[\n{text}]\n")
        waiting = len(stages) * point.real_time * power_w
        claims.append((point.real_time, point.cost + waiting))
    with open(out / "claims.csv", "w", newline="") as file:
        csv.writer(file).writerows([("time", "energy"), *claims])
    print(json.dumps({
        "import_s": imported - began,
        "prepare_s": prepared - imported,
        "solve_s": solving,
        "total_s": time.perf_counter() - began,
    }))


if __name__ == "__main__":
    main()
