"""The schedules of `torch.distributed.pipelining`, run by PyTorch itself."""

import pytest

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


def test_a_schedule_that_overlaps_is_refused_with_the_reason_and_trains_on_untouched(ranks, recorders):
    training = {"schedule": "DualPipeV", "steps": STEPS}
    alone, _ = ranks.train(TRAIN, recorders.environments, **training, followed=False).results()
    refused, warnings = ranks.train(TRAIN, recorders.environments, **training, followed=True).results()
    assert refused == alone
    for of_rank in warnings:
        (warning,) = of_rank
        assert warning.startswith("ScheduleDualPipeV is not followed, and trains on at default clocks: ")
        assert "OVERLAP_F_B" in warning
    recorders.expect_nothing()
