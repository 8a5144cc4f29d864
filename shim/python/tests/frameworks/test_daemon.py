"""What may happen to a training while a real daemon sets the clocks of simulated GPUs for it."""

import pytest
from clocks import Clocks
from model import MICROBATCHES
from node import PATIENCE_S, until
from ranks import RANKS

import pfo_gpu

STEPS = 8
SWAPPED_AT, KILLED_AT, STARTED_AT, BACK_AT = 2, 4, 5, 6
PLANNED_STEPS = KILLED_AT - SWAPPED_AT

TRAININGS = {
    "PyTorch 1F1B": ("pipelining_training:train", {"schedule": "1F1B"}),
    "PyTorch InterleavedZeroBubble": ("pipelining_training:train", {"schedule": "InterleavedZeroBubble"}),
    "DeepSpeed": ("deepspeed_training:train", {}),
    "Megatron-Core": ("megatron_training:train", {"chunks": 2}),
}


@pytest.fixture(params=TRAININGS.values(), ids=TRAININGS.keys())
def train(request, ranks, node):
    """Starts a training of ranks that find the node's daemon."""
    task, arguments = request.param
    daemon = {"PFO_SOCKET": str(node.socket), "PFO_DEVICES": str(node.devices), "PFO_JOB": "job"}
    environments = [{**daemon, "PFO_GPU": gpu} for gpu in node.gpus]

    def train(**more):
        return ranks.train(task, environments, steps=STEPS, **arguments, **more)

    return train


def test_clocks_follow_a_plan_that_is_swapped_in_and_no_bit_changes_even_if_the_daemon_dies(train, node):
    alone, _ = train(followed=False).results()
    # As `pfoctl plan optimize --schedule` makes them: what takes a fixed time has no place in the plan.
    passes = [[unit for unit in result["order"] if "ward" in unit[0]] for result in alone]
    clocks = Clocks(passes)
    clocks.write_plan(node.directory / "plan.json", MICROBATCHES)
    training = train(followed=True, holds=[SWAPPED_AT, KILLED_AT, STARTED_AT, BACK_AT])

    training.reach(SWAPPED_AT)
    set_before = [len(node.clocks_set(gpu)) for gpu in range(RANKS)]
    node.run("pfoctl", "plan", "swap", "job", str(node.directory / "plan.json"), "--socket", str(node.socket))
    training.go_on()

    training.reach(KILLED_AT)
    planned = [PLANNED_STEPS * len(order) for order in passes]
    until("every instruction ran under the plan", lambda: _instructions(node) == planned)
    for rank in node.ranks():
        assert (rank["stage"], rank["plan"], rank["mismatched_steps"]) == (rank["rank"], 1, 0), rank
        assert (rank["lost_events"], rank["last_mismatch"]) == (0, None), rank
    set_in_all = 0
    for gpu in range(RANKS):
        # After the last instruction, the clock of the next step's first one is set already.
        node.until_clock(gpu, clocks.first(gpu))
        clocks_set = node.clocks_set(gpu)[set_before[gpu] :]
        set_in_all += len(clocks_set)
        assert clocks.steps_for(gpu, clocks_set) <= PLANNED_STEPS + 1
    # A daemon that gets no processor time meanwhile sets only the clock that is due at last.
    assert set_in_all > RANKS
    node.kill_daemon()
    training.go_on()
    training.reach(STARTED_AT)
    node.start_daemon()
    training.go_on()

    training.reach(BACK_AT)
    until("every rank has its lease again", lambda: len(node.ranks()) == RANKS)
    training.go_on()
    told, warnings = training.results()
    assert told == alone
    # Whether the loss is said before the training ends is a matter of a second; nothing else is.
    of_a_loss = ("no daemon at", "events in between are lost")
    said = [text for of_rank in warnings for text in of_rank]
    assert [text for text in said if not any(part in text for part in of_a_loss)] == []


def test_a_refused_lease_changes_nothing_but_one_warning(train, node):
    alone, _ = train(followed=False).results()
    with pfo_gpu.Session(job="another", gpu=node.gpus[1], setup_timeout_s=PATIENCE_S) as holder:
        assert holder.problem is None
        told, warnings = train(followed=True).results()
    assert told == alone
    assert [len(of_rank) for of_rank in warnings] == [0, 1, 0, 0]
    assert warnings[1][0].startswith("training at default clocks: ")


def _instructions(node):
    return [rank["instructions"] for rank in node.ranks()]
