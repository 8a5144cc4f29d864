"""The schedules of `torch.distributed.pipelining`, run by PyTorch itself."""

import orders
import pytest
import scaled_training
from model import MICROBATCHES
from torch.distributed.pipelining.schedules import _ComputationType as KINDS

TRAIN = "pipelining_training:train"
STEPS = 2


@pytest.mark.parametrize(
    "schedule",
    ["1F1B", "GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"],
)
def test_every_instruction_is_told_in_the_schedules_order_and_no_bit_changes(ranks, recorders, schedule):
    training = {"schedule": schedule, "steps": STEPS}
    # PyTorch 2.15 hangs in the evaluation of this one.
    evaluate = schedule != "ZBVZeroBubble"
    alone, _ = ranks.train(TRAIN, recorders.environments, **training, followed=False).results()
    told, warnings = ranks.train(
        TRAIN, recorders.environments, **training, followed=True, evaluate=evaluate
    ).results()
    assert told == alone
    assert not any(warnings)
    recorders.expect(told, STEPS)


@pytest.mark.parametrize("schedule", ["1F1B", "Interleaved1F1B"])
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
def test_reduction_and_optimizer_are_told_in_the_step_and_no_bit_changes(ranks, recorders, schedule, sharded):
    training = {"schedule": schedule, "steps": STEPS, "sharded": sharded, "with_optimizer": True}
    alone, _ = ranks.train(TRAIN, recorders.environments, **training, followed=False).results()
    told, warnings = ranks.train(
        TRAIN, recorders.environments, **training, followed=True, evaluate=True
    ).results()
    assert told == alone
    assert not any(warnings)
    recorders.expect(told, STEPS)


@pytest.mark.parametrize("overlap", [False, True], ids=["one after the other", "at a time"])
def test_pairs_are_told_as_they_run_and_no_bit_changes(ranks, recorders, overlap):
    training = {"schedule": "DualPipeV", "steps": STEPS, "overlap": overlap}
    alone, _ = ranks.train(TRAIN, recorders.environments, **training, followed=False).results()
    told, warnings = ranks.train(TRAIN, recorders.environments, **training, followed=True).results()
    assert told == alone
    assert not any(warnings)
    paired = [any(name == "forward_backward" for name, *_ in result["order"]) for result in told]
    assert paired == [overlap] * len(told)
    recorders.expect(told, STEPS)


COMPUTATIONS = ["FORWARD", "FULL_BACKWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT"]
COLLECTIVES = ["UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD"]


@pytest.mark.parametrize(
    "schedule, custom",
    [
        ("Interleaved1F1B", ["FORWARD"]),
        ("InterleavedZeroBubble", COMPUTATIONS),
        ("ZBVZeroBubble", COMPUTATIONS),
        ("Interleaved1F1B", [*COMPUTATIONS, *COLLECTIVES]),
    ],
    ids=["forward", "zero bubble", "V", "all"],
)
def test_functions_of_the_trainers_own_are_told_as_what_they_run_and_no_bit_changes(ranks, recorders, schedule, custom):
    training = {"schedule": schedule, "steps": STEPS, "custom": [kind for kind in custom if hasattr(KINDS, kind)]}
    alone, _ = ranks.train(TRAIN, recorders.environments, **training, followed=False).results()
    told, warnings = ranks.train(TRAIN, recorders.environments, **training, followed=True).results()
    assert told == alone
    assert not any(warnings)
    recorders.expect(told, STEPS)


@pytest.mark.parametrize("schedule", ["1F1B", "Interleaved1F1B"])
@pytest.mark.parametrize("run_by", ["_step_microbatches", "taken before", "a runtime"])
def test_a_step_is_told_however_it_is_run_and_no_bit_changes(ranks, recorders, schedule, run_by):
    training = {"schedule": schedule, "steps": STEPS, "run_by": run_by}
    alone, _ = ranks.train(TRAIN, recorders.environments, **training, followed=False).results()
    told, warnings = ranks.train(TRAIN, recorders.environments, **training, followed=True).results()
    assert told == alone
    assert not any(warnings)
    recorders.expect(told, STEPS)


@pytest.mark.parametrize("kind", [scaled_training.Scaled, scaled_training.ScaledByKeyword])
def test_an_optimizer_that_is_given_a_scaler_is_given_it_when_it_is_followed(recorder, warnings, kind):
    assert scaled_training.train(kind, followed=True) == scaled_training.train(kind, followed=False)
    told = [f"{end}{name} {index}" for name, index, _ in orders.gpipe(MICROBATCHES) for end in ("", "end of ")]
    told += ["optimizer_step 0", "end of optimizer_step 0"]
    recorder.expect(*[mark for step in (0, 1) for mark in (f"step {step}", *told, f"end of step {step}")], "goodbye")
    assert not warnings()
