"""A job of one stage, and its plans."""

import json


def one_step(session):
    with session.step():
        for m in range(2):
            with session.instruction("forward", m):
                pass
            with session.instruction("backward", m):
                pass


def plan_file(node, mhz, instructions=("forward", "backward")):
    """The file of a plan for one stage that runs these in turns."""
    rows = [
        {"instruction": name, "microbatch": m, "frequency_mhz": mhz} for m in range(2) for name in instructions
    ]
    plan = {
        "format": "pfo-plan/1",
        "gpu": "A40",
        "schedule": "1f1b",
        "num_stages": 1,
        "num_microbatches": 2,
        "p2p_blocking_power_w": 70,
        "stages": [{"stage": 0, "instructions": rows}],
    }
    file = node.directory / "plan.json"
    file.write_text(json.dumps(plan))
    return file
