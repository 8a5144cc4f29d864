"""What following a framework does to what it follows. The frameworks themselves are in `frameworks/`."""

import pytest

import pfo
import pfo.integrations.deepspeed
import pfo.integrations.pipelining


class Stage:
    """A stage of `torch.distributed.pipelining`, which returns what it was given."""

    group_rank, group_size = 0, 1

    def __init__(self, index):
        self.stage_index = index

    def forward_one_chunk(self, microbatch, *arguments, **named):
        if arguments == ("fail",):
            raise RuntimeError("out of memory")
        return microbatch, arguments, named

    backward_one_chunk = backward_weight_one_chunk = forward_one_chunk


class Schedule:
    """A schedule, which runs what its step is given."""

    def step(self, run):
        return run()

    def eval(self, run):
        return self.step(run)


@pytest.fixture
def followed(recorder):
    schedule, stages = Schedule(), [Stage(4), Stage(0)]
    session = pfo.integrations.pipelining.follow(schedule, stages)
    yield schedule, stages
    session.close()


def test_a_stage_gets_its_arguments_as_they_are_and_its_chunk_is_its_place_among_the_ranks_stages(
    followed, recorder
):
    schedule, (later, first) = followed

    def run():
        assert first.forward_one_chunk(0, "a", b=1) == (0, ("a",), {"b": 1})
        assert later.backward_one_chunk(1, None, False, True) == (1, (None, False, True), {})
        assert later.backward_one_chunk(2, loss=3) == (2, (), {"loss": 3})
        assert first.backward_weight_one_chunk(1, last_backward=True) == (1, (), {"last_backward": True})

    schedule.step(run)
    recorder.expect(
        "step 0",
        "forward 0",
        "end of forward 0",
        "backward_input 1 of chunk 1",
        "end of backward_input 1 of chunk 1",
        "backward 2 of chunk 1",
        "end of backward 2 of chunk 1",
        "backward_weight 1",
        "end of backward_weight 1",
        "end of step 0",
    )


def test_what_fails_has_ended_and_its_error_is_the_trainers(followed, recorder):
    schedule, (_, first) = followed
    with pytest.raises(RuntimeError, match="out of memory"):
        schedule.step(lambda: first.forward_one_chunk(0, "fail"))
    recorder.expect("step 0", "forward 0", "end of forward 0", "end of step 0")


def test_an_evaluation_is_not_told_even_if_it_fails(followed, recorder):
    schedule, (_, first) = followed
    schedule.eval(lambda: first.forward_one_chunk(0))
    with pytest.raises(RuntimeError, match="out of memory"):
        schedule.eval(lambda: first.forward_one_chunk(0, "fail"))
    schedule.step(lambda: first.forward_one_chunk(1))
    recorder.expect("step 0", "forward 1", "end of forward 1", "end of step 0")


class ForwardPass:
    """An instruction of DeepSpeed."""


class SendActivation:
    """Another one."""


class Engine:
    """An engine of DeepSpeed, which runs one instruction of each kind that its map has."""

    def _exec(self, buffer_id):
        return self, buffer_id

    _INSTRUCTION_MAP = {ForwardPass: _exec, SendActivation: _exec}

    def train_batch(self):
        return [run(self, buffer_id=7) for run in self._INSTRUCTION_MAP.values()]


def test_an_engine_has_a_map_of_its_own_and_its_class_keeps_that_of_all(recorder):
    engine, other = Engine(), Engine()
    before = dict(Engine._INSTRUCTION_MAP)
    with pfo.Session() as session:
        assert pfo.integrations.deepspeed.follow(engine, session) is session
        assert engine.train_batch() == [(engine, 7), (engine, 7)]
        assert other.train_batch() == [(other, 7), (other, 7)]
    assert Engine._INSTRUCTION_MAP == before
    recorder.expect("step 0", "forward 0", "end of forward 0", "end of step 0", "goodbye")
