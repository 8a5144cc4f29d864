"""Nanotron's pipeline engines, run by Nanotron itself."""

import pytest

STEPS = 2


@pytest.mark.parametrize("one_forward_one_backward", [True, False], ids=["1F1B", "AFAB"])
def test_every_instruction_is_told_in_the_engines_order_and_no_bit_changes(
    ranks, recorders, one_forward_one_backward
):
    training = {"steps": STEPS, "one_forward_one_backward": one_forward_one_backward}
    task = "nanotron_training:train"
    alone, _ = ranks.train(task, recorders.environments, **training, followed=False).results()
    told, warnings = ranks.train(task, recorders.environments, **training, followed=True).results()
    assert told == alone
    assert not any(warnings)
    recorders.expect(told, STEPS)
