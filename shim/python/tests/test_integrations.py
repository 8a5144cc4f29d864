"""What following a framework does to what it follows. The frameworks themselves are in `frameworks/`."""

import sys
from types import SimpleNamespace

import pytest

import pfo_gpu
import pfo_gpu.integrations.deepspeed
import pfo_gpu.integrations.pipelining
from pfo_gpu.integrations.replicas import of_group, of_mesh


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
    session = pfo_gpu.integrations.pipelining.follow(schedule, stages)
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


def test_followed_twice_a_schedule_reports_once(followed, recorder, warnings):
    schedule, (later, first) = followed
    session = pfo_gpu.integrations.pipelining.follow(schedule, [later, first])
    schedule.step(lambda: first.forward_one_chunk(0))
    recorder.expect("step 0", "forward 0", "end of forward 0", "end of step 0")
    assert len(recorder.said) == 1 and not warnings()
    session.close()
    with pfo_gpu.integrations.pipelining.follow(schedule, [later, first]) as again:
        assert again is not session
        schedule.step(lambda: first.forward_one_chunk(0))
    recorder.expect("step 0", "forward 0", "end of forward 0", "end of step 0", "goodbye", connection=1)


@pytest.mark.parametrize("stages", [[], [object()], None, object()])
def test_what_is_no_schedule_of_pytorchs_is_left_alone_with_one_warning(recorder, warnings, stages):
    schedule = Schedule()
    assert pfo_gpu.integrations.pipelining.follow(schedule, stages) is None
    assert "step" not in vars(schedule) and recorder.said == []
    assert len(warnings()) == 1 and warnings()[0].startswith("Schedule is not followed, and trains on")


def test_a_stage_that_cannot_be_changed_leaves_nothing_half_followed(recorder, warnings):
    class Frozen(Stage):
        def __setattr__(self, name, value):
            if name == "backward_one_chunk":
                raise TypeError("it is frozen")
            super().__setattr__(name, value)

    schedule, stages = Schedule(), [Stage(0), Frozen(1)]
    assert pfo_gpu.integrations.pipelining.follow(schedule, stages) is None
    assert [set(vars(stage)) for stage in stages] == [{"stage_index"}, {"stage_index"}]
    assert "step" not in vars(schedule) and "it is frozen" in warnings()[0]
    recorder.expect("goodbye")


def test_the_schedule_alone_says_stages_gpu_and_microbatches(node, monkeypatch):
    monkeypatch.delenv("PFO_GPU")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(node.gpus[1:]))
    schedule, stage = Schedule(), Stage(2)
    stage.group_rank, stage.group_size, stage.device = 2, 4, "cuda:1"
    schedule._stages, schedule._n_microbatches = [stage], 8
    with pfo_gpu.integrations.pipelining.follow(schedule):
        (rank,) = node.ranks()
        assert (rank["stage"], rank["gpu_uuid"]) == (2, node.gpus[2])


def test_a_step_in_which_nothing_was_reported_is_one_warning(followed, warnings):
    schedule, _ = followed
    schedule.step(lambda: None)
    schedule.step(lambda: None)
    assert len(warnings()) == 1 and "ran no instruction in its first step" in warnings()[0]


class Mesh:
    """A `DeviceMesh` of 2 x 4 x 3, at its last rank but one."""

    mesh_dim_names = ("dp", "pp", "tp")

    def size(self, dimension):
        return (2, 4, 3)[dimension]

    def get_local_rank(self, dimension):
        return (1, 3, 1)[dimension]


def test_a_mesh_says_replica_and_shard():
    assert of_mesh(Mesh()) == {"dp_rank": 1, "dp_degree": 2, "tp_rank": 1, "tp_degree": 3}


@pytest.mark.parametrize(
    ("pipeline", "world", "replica"),
    [
        ([0, 1, 2, 3], 4, (0, 1)),
        ([4, 5, 6, 7], 8, (1, 2)),
        ([1, 3, 5, 7], 8, (1, 2)),
        ([9, 11], 12, (5, 6)),
        ([3], 4, (3, 4)),
    ],
)
def test_a_pipelines_ranks_say_which_replica_it_is(monkeypatch, pipeline, world, replica):
    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_world_size=lambda: world,
        get_process_group_ranks=lambda group: pipeline,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    assert of_group(None) == {"dp_rank": replica[0], "dp_degree": replica[1]}


def test_ranks_without_a_regular_form_are_no_replica(monkeypatch):
    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_world_size=lambda: 8,
        get_process_group_ranks=lambda group: [0, 1, 3, 7],
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    assert of_group(None) == {}


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
    with pfo_gpu.Session() as session:
        assert pfo_gpu.integrations.deepspeed.follow(engine, session) is session
        assert engine.train_batch() == [(engine, 7), (engine, 7)]
        assert other.train_batch() == [(other, 7), (other, 7)]
        assert pfo_gpu.integrations.deepspeed.follow(engine) is session
        engine.train_batch()
    assert Engine._INSTRUCTION_MAP == before
    steps = [f"{mark} {step}" if "step" in mark else mark for step in range(2) for mark in MARKS]
    recorder.expect(*steps, "goodbye")


MARKS = ("step", "forward 0", "end of forward 0", "end of step")


def test_a_plain_engine_is_left_alone_with_one_warning(recorder, warnings):
    class DeepSpeedEngine:
        pass

    assert pfo_gpu.integrations.deepspeed.follow(DeepSpeedEngine()) is None
    assert len(warnings()) == 1 and warnings()[0].startswith("DeepSpeedEngine is not followed, ")
    assert "PipelineEngine" in warnings()[0] and recorder.said == []
