"""Megatron-Bridge's callbacks and Megatron-Core's schedules. Its `pretrain` requires a GPU."""

import pytest

STEPS = 2


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_callback_follows_what_megatron_bridge_trains(ranks, recorders, chunks):
    task = "megatron_training:train"
    training = {"steps": STEPS, "chunks": chunks}
    alone, _ = ranks.train(task, recorders.environments, **training, followed=False).results()
    told, warnings = ranks.train(
        task, recorders.environments, **training, followed=True, evaluate=True, bridged=True
    ).results()
    assert told == alone
    assert not any(warnings)
    recorders.expect(told, STEPS)
