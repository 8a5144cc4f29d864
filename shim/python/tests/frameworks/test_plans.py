"""What pfoctl calls a schedule, and what frameworks do that they call alike."""

import json

import pytest
from model import MICROBATCHES
from torch.distributed.pipelining import schedules

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
    assert planned == [[unit for unit in result["order"] if "ward" in unit[0]] for result in results]


def of_pytorch(kind, rank, ranks, microbatches):
    """What a rank runs, with each overlapped pair one after the other, as by default."""
    schedule = object.__new__(kind)
    schedule.pp_group_size, schedule.num_stages, schedule._n_microbatches = ranks, 2 * ranks, microbatches
    actions = [action for action in schedule._calculate_single_rank_operations(rank) if action is not None]
    flat = [single for action in actions for single in action.sub_actions or [action]]
    names = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
    return [
        [names[action.computation_type.value], action.microbatch_index, int(action.stage_index != rank)]
        for action in flat
    ]


@pytest.mark.parametrize(
    "kind, schedule, fewest",
    [(schedules.ScheduleZBVZeroBubble, "zb-v", 0), (schedules.ScheduleDualPipeV, "dualpipe-v", 2)],
)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_a_v_is_planned_in_the_order_of_pytorch(node, kind, schedule, fewest, ranks):
    profile, frontier, plan = (str(node.directory / name) for name in ("profile.csv", "frontier", "plan.json"))
    kinds = ["forward", "backward", "backward_input", "backward_weight"]
    with open(profile, "w") as file:
        print("stage,instruction,frequency,time,energy", file=file)
        for stage in range(ranks):
            for instruction in kinds:
                print(stage, instruction, 1000, 0.1, 20, sep=",", file=file)
    least = max(1, fewest * ranks)
    for microbatches in {least, least + 1, 2 * ranks - 1, 2 * ranks, 3 * ranks + 1} - set(range(least)):
        optimize = ["--schedule", schedule, "--microbatches", str(microbatches), "--p2p-power", "70", "--plans", "2"]
        node.run("pfoctl", "plan", "optimize", profile, *optimize, "--output", frontier)
        node.run("pfoctl", "plan", "export", frontier, "--deadline", "fastest", "--output", plan)
        with open(plan) as file:
            stages = json.load(file)["stages"]
        for rank, stage in enumerate(stages):
            planned = [
                [unit["instruction"], unit["microbatch"], unit.get("chunk", 0)] for unit in stage["instructions"]
            ]
            assert planned == of_pytorch(kind, rank, ranks, microbatches)
