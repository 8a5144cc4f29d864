"""What pfoctl calls a schedule, and what frameworks do that they call alike."""

import json

import pytest
from model import MICROBATCHES

PYTORCH, DEEPSPEED, MEGATRON = "pipelining_training:train", "deepspeed_training:train", "megatron_training:train"


@pytest.mark.parametrize(
    "task, arguments, schedule",
    [
        (PYTORCH, {"schedule": "1F1B"}, "1f1b"),
        (PYTORCH, {"schedule": "GPipe"}, "gpipe"),
        (PYTORCH, {"schedule": "Interleaved1F1B"}, "interleaved-1f1b"),
        (DEEPSPEED, {}, "1f1b"),
        (MEGATRON, {"chunks": 1}, "1f1b"),
        (MEGATRON, {"chunks": 2}, "interleaved-1f1b"),
    ],
)
def test_a_plan_for_a_schedule_has_the_order_that_the_framework_runs(ranks, node, task, arguments, schedule):
    results, _ = ranks.train(task, [{}] * 4, steps=0, followed=False, **arguments).results()
    profile, frontier, plan = (str(node.directory / name) for name in ("profile.csv", "frontier", "plan.json"))
    node.run("pfo-sim", "profile", "--ideal", "--gpu", "A40", "--output", profile)
    optimize = ["--schedule", schedule, "--microbatches", str(MICROBATCHES), "--p2p-power", "70", "--plans", "2"]
    node.run("pfoctl", "plan", "optimize", profile, *optimize, "--output", frontier)
    node.run("pfoctl", "plan", "export", frontier, "--deadline", "fastest", "--output", plan)
    with open(plan) as file:
        stages = json.load(file)["stages"]
    planned = [
        [[unit["instruction"], unit["microbatch"], unit.get("chunk", 0)] for unit in stage["instructions"]]
        for stage in stages
    ]
    assert planned == [result["order"] for result in results]
