"""The schedules of Megatron-Core, run by Megatron-Core itself."""

import pytest

TRAIN = "megatron_training:train"
STEPS = 2


@pytest.mark.parametrize("chunks", [1, 2], ids=["1F1B", "Interleaved1F1B"])
def test_every_instruction_is_told_in_the_schedules_order_and_no_bit_changes(ranks, recorders, chunks):
    training = {"steps": STEPS, "chunks": chunks}
    alone, _ = ranks.train(TRAIN, recorders.environments, **training, followed=False).results()
    told, warnings = ranks.train(
        TRAIN, recorders.environments, **training, followed=True, evaluate=True
    ).results()
    assert told == alone
    assert not any(warnings)
    recorders.expect(told, STEPS)


def test_overlapped_communication_of_experts_is_refused_with_the_reason_and_trains_on_untouched(ranks, recorders):
    training = {"steps": STEPS}
    alone, _ = ranks.train(TRAIN, recorders.environments, **training, followed=False).results()
    refused, warnings = ranks.train(
        TRAIN, recorders.environments, **training, followed=True, overlapped=True
    ).results()
    assert refused == alone
    for of_rank in warnings:
        (warning,) = of_rank
        assert warning.startswith("Megatron-Core's combined 1F1B is not followed, ")
    recorders.expect_nothing()
