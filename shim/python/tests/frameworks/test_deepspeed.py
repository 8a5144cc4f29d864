"""DeepSpeed's pipeline engine, run by DeepSpeed itself."""

from importlib.metadata import version

import pytest
from packaging.version import Version

TRAIN = "deepspeed_training:train"
STEPS = 2


@pytest.mark.parametrize("dual_pipe_v", [False, True], ids=["1F1B", "DualPipeV"])
def test_every_instruction_is_told_in_the_schedules_order_and_no_bit_changes(ranks, recorders, dual_pipe_v):
    if dual_pipe_v and Version(version("deepspeed")) < Version("0.19.8"):
        pytest.skip("DeepSpeed has DualPipeV from 0.19.8 on")
    training = {"steps": STEPS, "dual_pipe_v": dual_pipe_v}
    alone, _ = ranks.train(TRAIN, recorders.environments, **training, followed=False).results()
    told, warnings = ranks.train(
        TRAIN, recorders.environments, **training, followed=True, evaluate=True
    ).results()
    assert told == alone
    assert not any(warnings)
    recorders.expect(told, STEPS)
