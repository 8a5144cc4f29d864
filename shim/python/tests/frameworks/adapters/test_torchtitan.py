"""torchtitan's meshes and PyTorch's schedule."""

STEPS = 2


def test_replicas_come_from_the_meshes_and_every_instruction_is_told(ranks, recorders):
    task = "torchtitan_training:train"
    alone, _ = ranks.train(task, recorders.environments, steps=STEPS, followed=False).results()
    told, warnings = ranks.train(task, recorders.environments, steps=STEPS, followed=True).results()
    assert not any(warnings)
    assert [of_rank.pop("replica")["dp_rank"] for of_rank in told] == [0, 1, 0, 1]
    assert all(of_rank.pop("replica") is None for of_rank in alone)
    assert told == alone
    recorders.expect(told, STEPS)
