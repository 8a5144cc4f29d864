"""Replays plans over an order file and a profile: the second opinion about both formats.

    python3 replay_order.py PROFILE.csv ORDER.json PLAN.json [PROFILE.csv ORDER.json PLAN.json ...]

Prints a line of JSON for each three: {"iteration_time_s": ..., "iteration_energy_j": ...}. What waits for
what comes from the order file, and the clocks from the plan, whose own dependencies are not looked at.
Every rule is written down here again, from the documentation of the formats. Standard library only.
"""

import csv
import json
import sys
from collections import defaultdict

FIXED = {"load", "p2p", "collective", "optimizer_step"}
BACKWARDS = {"backward", "forward_backward", "backward_input"}


def number(text):
    return int(text) if text not in (None, "") else None


def read_profile(path):
    """Lists of (time, energy) by stage, instruction, MHz, chunk and microbatch."""
    rows = defaultdict(list)
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            key = (int(row["stage"]), row["instruction"], int(float(row["frequency"])))
            part = (number(row.get("chunk")), number(row.get("microbatch")))
            rows[key + part].append((float(row["time"]), float(row["energy"])))
    return rows


def mean(values):
    values = list(values)
    return tuple(sum(column) / len(values) for column in zip(*values))


class Profile:
    """Time and energy of instructions, each chunk and each microbatch as it was measured."""

    def __init__(self, path, chunks_matter):
        self.means = {key: mean(values) for key, values in read_profile(path).items()}
        chunks = {key[3] for key in self.means if key[3] is not None}
        self.by_chunk = chunks_matter and len(chunks) > 1

    def at(self, stage, instruction, mhz, chunk, microbatch):
        def like(chunk, microbatch):
            wanted = {"chunk": chunk, "microbatch": microbatch}
            found = [
                value
                for key, value in self.means.items()
                if key[0] == stage
                and key[1] == instruction
                and (instruction in FIXED or key[2] == mhz)
                and (wanted["chunk"] is None or key[3] == wanted["chunk"])
                and (wanted["microbatch"] is None or key[4] == wanted["microbatch"])
            ]
            return mean(found) if found else None

        chunk = chunk if self.by_chunk else None
        for part in ((chunk, microbatch), (chunk, None), (None, None)):
            found = like(*part)
            if found:
                return found
        raise SystemExit(f"no row for {instruction} of stage {stage} at {mhz} MHz")


def neighbour(placement, stage, chunk, stages, chunks, step):
    """The virtual stage before (step -1) or after (step 1) one, if there is one."""
    if placement == "loop":
        place = chunk * stages + stage + step
        return (place % stages, place // stages) if 0 <= place < chunks * stages else None
    falling = chunk % 2 == 1
    along = stage - step if falling else stage + step
    if 0 <= along < stages:
        return along, chunk
    if placement == "two-way":
        return None
    # In a V the next chunk goes on where this one ends.
    return (stage, chunk + step) if 0 <= chunk + step < chunks else None


class Order:
    def __init__(self, path):
        with open(path) as file:
            document = json.load(file)
        assert document["format"] == "pfo-order/1", document["format"]
        self.placement = document.get("placement", "loop")
        self.transfer_s = document.get("transfer_time_s", 0.0)
        self.stages = [[self.entry(e) for e in stage] for stage in document["stages"]]
        self.said = {self.of(d["of"]): [self.of(a) for a in d["after"]] for d in document.get("dependencies", [])}
        parts = [part for stage in self.stages for entry in stage for part in self.parts(entry)]
        self.chunks = 1 + max(chunk for _, _, chunk in parts)

    @staticmethod
    def entry(e):
        forward = e.get("forward")
        beside = (forward["microbatch"], forward.get("chunk", 0)) if forward else None
        return e["instruction"], e["microbatch"], e.get("chunk", 0), beside

    @staticmethod
    def of(named):
        return named["stage"], named["instruction"], named["microbatch"], named.get("chunk", 0)

    @staticmethod
    def parts(entry):
        instruction, microbatch, chunk, beside = entry
        yield instruction, microbatch, chunk
        if beside:
            yield ("forward",) + beside

    def makers(self):
        """Who makes which activation ("a") and gradient ("g")."""
        makers = {}
        for stage, entries in enumerate(self.stages):
            for entry in entries:
                unit = (stage,) + entry[:3]
                for instruction, microbatch, chunk in self.parts(entry):
                    if instruction == "forward":
                        makers["a", stage, chunk, microbatch] = unit
                    elif instruction in BACKWARDS:
                        makers["g", stage, chunk, microbatch] = unit
        return makers

    def waits(self):
        """What each instruction waits for, beside the one before it on its stage."""
        makers, stages = self.makers(), len(self.stages)
        for stage, entries in enumerate(self.stages):
            for entry in entries:
                unit = (stage,) + entry[:3]
                if unit in self.said:
                    yield unit, self.said[unit]
                    continue
                needed = []
                for instruction, microbatch, chunk in self.parts(entry):
                    before = neighbour(self.placement, stage, chunk, stages, self.chunks, -1)
                    after = neighbour(self.placement, stage, chunk, stages, self.chunks, 1)
                    labels = instruction == "load" and self.placement == "loop" and stage == stages - 1
                    if instruction == "forward" or labels:
                        product = "a" if before else None
                    elif instruction == "recomputation":
                        product, before = "a", (stage, chunk)
                    elif instruction == "backward_weight":
                        product, before = "g", (stage, chunk)
                    elif instruction in BACKWARDS:
                        product, before = ("g", after) if after else ("a", (stage, chunk))
                    else:
                        product = None
                    if product:
                        needed.append(makers[(product,) + before + (microbatch,)])
                yield unit, needed


def replay(profile_path, order_path, plan_path):
    order = Order(order_path)
    with open(plan_path) as file:
        plan = json.load(file)
    profile = Profile(profile_path, order.chunks > 1)
    clocks = {}
    for stage in plan["stages"]:
        run = [(p["instruction"], p["microbatch"], p.get("chunk", 0)) for p in stage["instructions"]]
        assert run == [entry[:3] for entry in order.stages[stage["stage"]]], "the plan runs another order"
        for unit, planned in zip(run, stage["instructions"]):
            clocks[(stage["stage"],) + unit] = planned["frequency_mhz"]

    waits = dict(order.waits())
    ends, busy_s, energy_j = {}, 0.0, 0.0
    next_of, free_s = [0] * len(order.stages), [0.0] * len(order.stages)
    moved = True
    while moved:
        moved = False
        for stage, entries in enumerate(order.stages):
            while next_of[stage] < len(entries):
                instruction, microbatch, chunk, _ = entries[next_of[stage]]
                unit = (stage, instruction, microbatch, chunk)
                if any(needed not in ends for needed in waits[unit]):
                    break
                arrivals = [ends[n] + (order.transfer_s if n[0] != stage else 0.0) for n in waits[unit]]
                time_s, joules = profile.at(stage, instruction, clocks[unit], chunk, microbatch)
                free_s[stage] = ends[unit] = max([free_s[stage]] + arrivals) + time_s
                busy_s, energy_j = busy_s + time_s, energy_j + joules
                next_of[stage], moved = next_of[stage] + 1, True
    assert next_of == [len(entries) for entries in order.stages], "the order deadlocks"
    iteration_s = max(free_s)
    waiting_s = len(order.stages) * iteration_s - busy_s
    power_w = plan["p2p_blocking_power_w"] or 0.0
    return {"iteration_time_s": iteration_s, "iteration_energy_j": energy_j + power_w * waiting_s}


if __name__ == "__main__":
    arguments = sys.argv[1:]
    for place in range(0, len(arguments), 3):
        print(json.dumps(replay(*arguments[place : place + 3])))
