"""A job of one stage, and its plans."""

import json


def one_step(session):
    with session.step():
        for m in range(2):
            with session.instruction("forward", m):
                pass
            with session.instruction("backward", m):
                pass


def plan_file(node, mhz):
    """The file of a plan of two microbatches at one clock."""
    clocks = [(name, m, mhz) for m in range(2) for name in ("forward", "backward")]
    return write_plan(node, clocks, num_microbatches=2)


def write_plan(node, clocks, *, num_microbatches):
    """The file of a plan for one stage, of instructions, their microbatches and clocks in turn."""
    rows = [{"instruction": name, "microbatch": m, "frequency_mhz": mhz} for name, m, mhz in clocks]
    plan = {
        "format": "pfo-plan/1",
        "gpu": "A40",
        "schedule": "1f1b",
        "num_stages": 1,
        "num_microbatches": num_microbatches,
        "p2p_blocking_power_w": 70,
        "stages": [{"stage": 0, "instructions": rows}],
    }
    file = node.directory / "plan.json"
    file.write_text(json.dumps(plan))
    return file
