"""What following a framework does to what it follows. The frameworks themselves are in `frameworks/`."""

import copy
import enum
import functools
import inspect
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from node import until

import pfo_gpu
import pfo_gpu.integrations.accelerate
import pfo_gpu.integrations.deepspeed
import pfo_gpu.integrations.huggingface
import pfo_gpu.integrations.lightning
import pfo_gpu.integrations.megatron_bridge
import pfo_gpu.integrations.pipelining
import pfo_gpu.integrations.reporting
import pfo_gpu.integrations.torchtitan
from pfo_gpu.integrations import releases
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


def test_a_step_that_fails_before_it_computes_is_the_same_one_as_the_next(followed, recorder, warnings):
    schedule, (_, first) = followed

    def fail():
        raise RuntimeError("no batch")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="no batch"):
            schedule.step(fail)
    for _ in range(2):
        schedule.step(lambda: first.forward_one_chunk(0))
    forward = ["forward 0", "end of forward 0"]
    recorder.expect("step 0", *forward, "end of step 0", "step 1", *forward, "end of step 1")


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


@pytest.mark.parametrize("again", [False, True], ids=["first", "followed already"])
def test_what_is_no_session_is_an_error_at_setup_and_not_in_the_loop(recorder, again):
    schedule, stage = Schedule(), Stage(0)
    if again:
        pfo_gpu.integrations.pipelining.follow(schedule, stage)
    with pytest.raises(TypeError, match="session is a Mesh, and not a pfo_gpu.Session"):
        pfo_gpu.integrations.pipelining.follow(schedule, stage, Mesh())
    schedule.step(lambda: stage.forward_one_chunk(0))


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
    assert len(warnings()) == 1 and "ran no forward or backward in its first step" in warnings()[0]
    assert "tested: 2.14.1 to 2.15.0" in warnings()[0]


class Full(Schedule):
    """A schedule of PyTorch's whose step runs what it is given, by another method that a trainer may call, too."""

    def __init__(self, microbatches=2, stages=None):
        self._stages, self._n_microbatches, self._has_backward = stages or [Stage(0)], microbatches, True

    def step(self, run=None):
        return self._step_microbatches(run)

    def _step_microbatches(self, run=None):
        return (run or self.whole)()

    def eval(self, run=None):
        self._has_backward = False
        try:
            return self.step(run)
        finally:
            self._has_backward = True

    def whole(self):
        for index in range(self._n_microbatches):
            for stage in self._stages:
                stage.forward_one_chunk(index)
                stage.backward_one_chunk(index)


@pytest.fixture
def full(recorder):
    schedule = Full()
    with pfo_gpu.integrations.pipelining.follow(schedule):
        yield schedule


WHOLE = [f"{end}{name} {index}" for index in (0, 1) for name in ("forward", "backward") for end in ("", "end of ")]


def test_what_a_step_does_not_report_is_one_warning_that_names_it(full, warnings):
    stage = full._stages[0]
    for _ in range(3):
        full.step(lambda: [stage.backward_one_chunk(index) for index in (0, 1)])
    (warning,) = warnings()
    assert "2 of 2 forwards are missing" in warning and "tested: 2.14.1 to 2.15.0" in warning


def test_what_a_step_reports_twice_is_one_warning_that_names_it(full, warnings):
    for _ in range(2):
        full.step(lambda: [full.whole(), full._stages[0].forward_one_chunk(0)])
    (warning,) = warnings()
    assert "3 forwards were reported where 2 run" in warning


def test_a_weight_part_that_is_not_reported_is_one_warning(full, warnings):
    stage = full._stages[0]
    full.step(lambda: [stage.forward_one_chunk(0), stage.forward_one_chunk(1), *(
        stage.backward_one_chunk(index, full_backward=False) for index in (0, 1)
    )])
    (warning,) = warnings()
    assert "2 of 2 weight parts of split backwards are missing" in warning


def test_a_stage_that_was_changed_after_follow_is_named(full, warnings):
    full._stages[0].forward_one_chunk = lambda index: index
    full.step()
    (warning,) = warnings()
    assert "something has replaced forward_one_chunk of stage 0: call follow afterwards" in warning


def test_a_step_that_fails_is_not_accounted_for(full, warnings):
    def fail():
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        full.step(fail)
    full.step()
    assert not warnings()


@pytest.mark.parametrize("how", ["the other method", "taken before"])
def test_a_step_counts_however_it_is_run(recorder, warnings, how):
    schedule = Full()
    step = schedule._step_microbatches if how == "the other method" else schedule.step
    with pfo_gpu.integrations.pipelining.follow(schedule):
        (schedule._step_microbatches if how == "the other method" else step)()
        schedule.step()
    told = [f"step {number}" for number in (0, 1)]
    recorder.expect(told[0], *WHOLE, f"end of {told[0]}", told[1], *WHOLE, f"end of {told[1]}", "goodbye")
    assert not warnings()


def test_an_evaluation_by_a_method_taken_before_is_not_told(recorder, warnings):
    schedule = Full()
    evaluate = schedule.eval
    with pfo_gpu.integrations.pipelining.follow(schedule):
        evaluate()
        schedule.step()
    recorder.expect("step 0", *WHOLE, "end of step 0", "goodbye")
    assert not warnings()


def test_a_stage_that_computes_outside_a_step_is_one_warning(full, recorder, warnings):
    for _ in range(2):
        full.whole()
    (warning,) = warnings()
    assert "computes a forward outside the steps that are followed" in warning
    full.step()
    recorder.expect("step 0", *WHOLE, "end of step 0")


def test_a_stage_that_computes_outside_a_step_without_gradients_is_an_evaluation(full, monkeypatch, warnings):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=None, is_grad_enabled=lambda: False))
    full.whole()
    assert not warnings()


def test_the_schedule_of_a_runtime_is_followed_in_its_place(recorder, warnings):
    class Runtime:
        def __init__(self, schedule):
            self.schedule = schedule

        def step(self):
            return self.schedule.step()

    runtime = Runtime(Full())
    with pfo_gpu.integrations.pipelining.follow(runtime) as session:
        assert pfo_gpu.integrations.pipelining.follow(runtime) is session
        runtime.step()
    recorder.expect("step 0", *WHOLE, "end of step 0", "goodbye")
    assert not warnings()


def test_a_microbatch_that_is_given_by_name_is_counted(full, recorder):
    class Named(Stage):
        def forward_one_chunk(self, fwd_chunk_id):
            return fwd_chunk_id

    schedule = Full(1, [Named(0)])
    with pfo_gpu.integrations.pipelining.follow(schedule):
        schedule.step(lambda: schedule._stages[0].forward_one_chunk(fwd_chunk_id=5))
    recorder.expect("step 0", "forward 0", "end of forward 0", "end of step 0", "goodbye", connection=1)


class Kind(enum.Enum):
    """PyTorch's kinds of actions."""

    FORWARD = "FORWARD"
    OVERLAP_F_B = "OVERLAP_F_B"


class Pairs(Schedule):
    """A schedule that pairs forwards with backwards, as PyTorch runs it."""

    def __init__(self, stages):
        self._stages = stages
        self._comp_type_to_function_map = {}

    def register_custom_function(self, computation_type, custom_function):
        self._comp_type_to_function_map[computation_type] = custom_function

    def step(self, pairs):
        overlap = self._comp_type_to_function_map.get(Kind.OVERLAP_F_B, self._one_after_the_other)
        for forward, backward in pairs:
            pair = [SimpleNamespace(stage_index=stage, microbatch_index=of) for stage, of in (forward, backward)]
            overlap(SimpleNamespace(sub_actions=tuple(pair)), None)

    def run_forward(self, action):
        self._stage(action).forward_one_chunk(action.microbatch_index)

    def run_backward(self, action):
        self._stage(action).backward_one_chunk(action.microbatch_index, full_backward=True)

    def _one_after_the_other(self, action, _context):
        forward, backward = action.sub_actions
        self.run_forward(forward)
        self.run_backward(backward)

    def _stage(self, action):
        return next(stage for stage in self._stages if stage.stage_index == action.stage_index)


PAIRS = [((0, 3), (7, 1)), ((7, 2), (0, 0))]


def overlapping(schedule):
    """A function that runs both of a pair at a time, as a trainer registers it."""

    def overlap(action, _context):
        forward, backward = action.sub_actions
        thread = threading.Thread(target=schedule.run_backward, args=(backward,))
        thread.start()
        schedule.run_forward(forward)
        thread.join()

    return overlap


def test_a_pair_that_runs_one_after_the_other_is_two_instructions(recorder):
    schedule = Pairs([Stage(0), Stage(7)])
    with pfo_gpu.integrations.pipelining.follow(schedule):
        schedule.step(PAIRS[:1])
    recorder.expect(
        "step 0",
        "forward 3",
        "end of forward 3",
        "backward 1 of chunk 1",
        "end of backward 1 of chunk 1",
        "end of step 0",
        "goodbye",
    )


@pytest.mark.parametrize("before", [True, False], ids=["registered before", "registered afterwards"])
def test_a_pair_that_overlaps_is_one_instruction_with_the_name_of_its_backward(recorder, before):
    schedule = Pairs([Stage(0), Stage(7)])
    if before:
        schedule.register_custom_function(Kind.OVERLAP_F_B, overlapping(schedule))
    with pfo_gpu.integrations.pipelining.follow(schedule):
        if not before:
            schedule.register_custom_function(Kind.OVERLAP_F_B, overlapping(schedule))
        schedule.step(PAIRS)
    recorder.expect(
        "step 0",
        "forward_backward 1 of chunk 1",
        "end of forward_backward 1 of chunk 1",
        "forward_backward 0",
        "end of forward_backward 0",
        "end of step 0",
        "goodbye",
    )


def test_a_pair_that_fails_has_ended_and_its_error_is_the_trainers(recorder):
    def fail(_action, _context):
        raise RuntimeError("out of memory")

    schedule = Pairs([Stage(0), Stage(7)])
    schedule.register_custom_function(Kind.OVERLAP_F_B, fail)
    with pfo_gpu.integrations.pipelining.follow(schedule):
        with pytest.raises(RuntimeError, match="out of memory"):
            schedule.step(PAIRS)
    told = ("forward_backward 1 of chunk 1", "end of forward_backward 1 of chunk 1")
    recorder.expect("step 0", *told, "end of step 0", "goodbye")


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

    micro_batches = None

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


class Optimizer:
    """An optimizer, which may fail."""

    def step(self, works=True):
        assert works, "no gradient"
        return self


def test_with_an_optimizer_a_step_goes_on_until_it_has_stepped_or_the_next_one_begins(recorder):
    schedule, stage, optimizer = Schedule(), Stage(0), Optimizer()
    session = pfo_gpu.integrations.pipelining.follow(schedule, stage, optimizer=optimizer)
    schedule.step(lambda: stage.forward_one_chunk(0))
    schedule.eval(lambda: stage.forward_one_chunk(0))
    assert optimizer.step.__func__(optimizer) is optimizer, "schedulers of learning rates call it so"
    assert optimizer.step() is optimizer, "outside of a step nothing is said"
    schedule.step(lambda: None)
    schedule.step(lambda: None)
    with pytest.raises(AssertionError, match="no gradient"):
        optimizer.step(works=False)
    session.close()
    stepped = ["optimizer_step 0", "end of optimizer_step 0"]
    recorder.expect(
        *["step 0", "forward 0", "end of forward 0", *stepped, "end of step 0"],
        *["step 1", "end of step 1", "step 2", *stepped, "end of step 2", "goodbye"],
    )


class KeywordOptimizer(Optimizer):
    """One that un-scales gradients itself, as `GradScaler` sees by its signature."""

    def step(self, *, grad_scaler=None):
        return grad_scaler


class BareOptimizer(Optimizer):
    """One whose step takes nothing."""

    def step(self):
        return self


@pytest.mark.parametrize("kind", [Optimizer, KeywordOptimizer, BareOptimizer])
def test_an_optimizers_step_has_the_same_signature_when_it_is_followed(recorder, kind):
    optimizer = kind()
    signature = inspect.signature(optimizer.step)
    with pfo_gpu.integrations.pipelining.follow(Schedule(), Stage(0), optimizer=optimizer):
        assert inspect.signature(optimizer.step) == signature
        function = optimizer.step.__func__
        assert inspect.signature(function.__get__(optimizer)) == signature
        assert optimizer.step.__self__ is optimizer and optimizer.step.__name__ == "step"


def schedule_learning_rate(optimizer):
    """Puts a function around a step as PyTorch's schedulers of learning rates do."""
    function = optimizer.step.__func__

    @functools.wraps(function)
    def step(*arguments, **named):
        return function.__get__(optimizer, type(optimizer))(*arguments, **named)

    optimizer.step = step


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_schedules_that_share_a_stage_and_an_optimizer_put_nothing_around_what_is_reported(
    recorder, warnings, scheduled, shared
):
    stage, optimizer = Stage(0), Optimizer()
    follow = functools.partial(pfo_gpu.integrations.pipelining.follow, stages=stage, optimizer=optimizer)
    session = follow(Schedule())
    if scheduled:
        schedule_learning_rate(optimizer)
    for _ in range(5):
        schedule = Schedule()
        session = follow(schedule, session=session if shared else None)
    assert stage.forward_one_chunk.run.__func__ is Stage.forward_one_chunk
    schedule.step(lambda: None)
    assert optimizer.step() is optimizer
    session.close()
    stepped = ["optimizer_step 0", "end of optimizer_step 0", "end of step 0", "goodbye"]
    recorder.expect("step 0", *stepped, connection=0 if shared else 5)
    told = pfo_gpu.integrations.reporting.reported_of(optimizer.step)
    assert told.run.__func__ is Optimizer.step and not pfo_gpu.integrations.reporting.reported_of(told.run)
    assert len(warnings()) == 1 and "ran no forward" in warnings()[0]


def test_two_schedules_of_a_session_both_report_what_they_share(recorder, warnings):
    stage, optimizer = Stage(0), Optimizer()
    schedules = [Schedule(), Schedule()]
    session = None
    for schedule in schedules:
        session = pfo_gpu.integrations.pipelining.follow(schedule, stage, session, optimizer=optimizer)
    for schedule in schedules:
        schedule.step(lambda: stage.forward_one_chunk(0))
        optimizer.step()
    session.close()
    ran = ["forward 0", "end of forward 0", "optimizer_step 0", "end of optimizer_step 0"]
    recorder.expect("step 0", *ran, "end of step 0", "step 1", *ran, "end of step 1", "goodbye")
    assert not warnings()


class Counting(Schedule):
    """A schedule that counts its own steps, and has a stage and an optimizer."""

    def __init__(self):
        self.steps, self._stage, self._n_microbatches, self.optimizer = 0, Stage(0), 1, Optimizer()
        self._has_backward = False

    def step(self):
        self.steps += 1
        return self._stage.forward_one_chunk(0)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda of: pickle.loads(pickle.dumps(of))])
def test_a_copy_of_what_is_followed_acts_on_itself_and_tells_nothing(recorder, duplicate):
    schedule = Counting()
    with pfo_gpu.integrations.pipelining.follow(schedule, optimizer=schedule.optimizer):
        copied = duplicate(schedule)
        assert copied.step() == (0, (), {}) and (copied.steps, schedule.steps) == (1, 0)
        assert copied.optimizer.step() is copied.optimizer and copied.optimizer is not schedule.optimizer
        assert b"pfo_gpu" not in pickle.dumps(schedule), "who reads it may have no pfo"
        schedule.step()
        schedule.optimizer.step()
    ran = ["forward 0", "end of forward 0", "optimizer_step 0", "end of optimizer_step 0"]
    recorder.expect("step 0", *ran, "end of step 0", "goodbye")


def test_what_goes_on_after_another_session_has_replaced_its_own_is_one_warning(recorder, warnings):
    first, second = Counting(), Counting()
    pfo_gpu.integrations.pipelining.follow(first)
    first.step()
    session = pfo_gpu.integrations.pipelining.follow(second)
    second.step()
    assert not warnings(), "the first may be over, as in a notebook whose cell runs again"
    first.step()
    first.step()
    assert len(warnings()) == 1 and "give the session of the first to the others" in warnings()[0]
    session.close()
    second.step()
    assert len(warnings()) == 1, "who closes a session knows it"


class ReduceTiedGrads:
    """A part of the reduction."""


class ReduceGrads:
    """The other part, without which some schedules have none."""


@pytest.mark.parametrize("parts", [[ReduceTiedGrads, ReduceGrads], [ReduceGrads]])
def test_both_reductions_of_an_engine_are_one_collective_even_if_the_second_fails(recorder, parts):
    class Reducing(Engine):
        _INSTRUCTION_MAP = {part: Engine._exec for part in parts}

    def fail(engine, buffer_id):
        raise RuntimeError("the network is gone")

    engine = Reducing()
    with pfo_gpu.Session() as session:
        pfo_gpu.integrations.deepspeed.follow(engine, session)
        engine.train_batch()
        engine = Reducing()
        engine._INSTRUCTION_MAP = {**engine._INSTRUCTION_MAP, ReduceGrads: fail}
        pfo_gpu.integrations.deepspeed.follow(engine, session)
        with pytest.raises(RuntimeError, match="the network is gone"):
            engine.train_batch()
    once = ["collective 0", "end of collective 0"]
    recorder.expect("step 0", *once, "end of step 0", "step 1", *once, "end of step 1", "goodbye")


def test_a_plain_engine_is_left_alone_with_one_warning(recorder, warnings):
    class DeepSpeedEngine:
        pass

    assert pfo_gpu.integrations.deepspeed.follow(DeepSpeedEngine()) is None
    assert len(warnings()) == 1 and warnings()[0].startswith("DeepSpeedEngine is not followed, ")
    assert "PipelineEngine" in warnings()[0] and recorder.said == []


def test_an_engine_that_cannot_be_changed_is_left_alone_and_its_session_closed(recorder, warnings):
    class Frozen(Engine):
        def __setattr__(self, name, value):
            if name == "train_batch":
                raise TypeError("it is frozen")
            super().__setattr__(name, value)

        grid = SimpleNamespace(
            **{
                f"get_{of}": lambda number=number: number
                for kind in ("pipe_parallel", "data_parallel", "slice_parallel")
                for of, number in ((f"{kind}_rank", 0), (f"{kind}_world_size", 1))
            },
            get_global_rank=lambda: 0,
        )
        micro_batches = 1

    engine = Frozen()
    assert pfo_gpu.integrations.deepspeed.follow(engine) is None
    assert vars(engine) == {} and len(warnings()) == 1 and "it is frozen" in warnings()[0]
    recorder.expect("goodbye")


class Hooked:
    """A model with PyTorch's hooks."""

    def __init__(self):
        self._forward_pre_hooks, self._forward_hooks = {}, {}

    @property
    def hooks(self):
        return [*self._forward_pre_hooks.values(), *self._forward_hooks.values()]

    def register_forward_pre_hook(self, hook, **options):
        self._forward_pre_hooks[0] = hook
        return SimpleNamespace(remove=self._forward_pre_hooks.clear)

    def register_forward_hook(self, hook, **options):
        self._forward_hooks[0] = hook
        return SimpleNamespace(remove=self._forward_hooks.clear)


class Accelerator(SimpleNamespace):
    """An `Accelerator`, which may be frozen."""

    frozen = False

    def __init__(self):
        super().__init__(_models=[Hooked()], _optimizers=[Optimizer()], sync_gradients=True)
        vars(self).update(distributed_type="NO", process_index=0, num_processes=1, device="cpu")
        self.gradient_accumulation_steps = 1

    def __setattr__(self, name, value):
        if self.frozen and name == "backward":
            raise TypeError("it is frozen")
        super().__setattr__(name, value)

    def backward(self, loss):
        return loss

    def prepare(self, model, optimizer):
        self._models.append(model)
        self._optimizers.append(optimizer)
        return model, optimizer


class Trainer:
    """A `Trainer` of Transformers."""

    def __init__(self, accelerator):
        self.args = SimpleNamespace(n_gpu=1, process_index=0, world_size=1, gradient_accumulation_steps=1, device="cpu")
        self.accelerator, self.callbacks = accelerator, []

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def remove_callback(self, callback):
        self.callbacks.remove(callback)

    def compute_loss(self, model):
        return model

    def evaluate(self):
        return self.compute_loss(5)

    def train(self, run):
        return run()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_trainer_of_transformers_is_followed_wholly_or_not_at_all(recorder, warnings, monkeypatch, frozen):
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(TrainerCallback=object))
    trainer = Trainer(Accelerator())
    trainer.accelerator.frozen = frozen
    session = pfo_gpu.integrations.huggingface.follow(trainer)
    if frozen:
        assert session is None and "it is frozen" in warnings()[0]
        assert trainer.callbacks == [] and "compute_loss" not in vars(trainer)
        recorder.expect("goodbye")
        return
    (hooks,) = trainer.callbacks
    hooks.on_step_begin()
    assert trainer.compute_loss(3) == 3 and trainer.accelerator.backward(4) == 4
    hooks.on_step_end()
    forwards = ["forward 0", "end of forward 0", "backward 0", "end of backward 0"]
    recorder.expect("step 0", *forwards, "end of step 0")
    assert pfo_gpu.integrations.huggingface.follow(trainer) is session and len(trainer.callbacks) == 1
    session.close()


@pytest.mark.parametrize("frozen", [False, True])
def test_an_accelerator_is_followed_wholly_or_not_at_all(recorder, warnings, frozen):
    accelerator = Accelerator()
    accelerator.frozen = frozen
    (model,), (optimizer,) = accelerator._models, accelerator._optimizers
    session = pfo_gpu.integrations.accelerate.follow(accelerator)
    if frozen:
        assert session is None and "it is frozen" in warnings()[0]
        assert model.hooks == [] and vars(optimizer) == {}
        recorder.expect("goodbye")
        return
    assert len(model.hooks) == 2 and accelerator.backward(4) == 4
    assert pfo_gpu.integrations.accelerate.follow(accelerator) is session and len(model.hooks) == 2
    session.close()


def told(hooks, trainer):
    hooks.on_step_begin()
    trainer.compute_loss(3)
    trainer.accelerator.backward(4)
    hooks.on_step_end()


@pytest.fixture
def hooked(recorder, monkeypatch):
    """A trainer of Transformers that is followed, and its callback."""
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(TrainerCallback=SimpleNamespace))
    trainer = Trainer(Accelerator())
    with pfo_gpu.integrations.huggingface.follow(trainer):
        yield trainer, trainer.callbacks[0]


FORWARD = ["forward 0", "end of forward 0"]
PASSES = [*FORWARD, "backward 0", "end of backward 0"]


def test_a_training_of_transformers_that_is_interrupted_has_ended_its_step(hooked, recorder):
    trainer, hooks = hooked

    def interrupted():
        hooks.on_step_begin()
        trainer.compute_loss(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.train(interrupted)
    hooks.on_step_begin()
    assert trainer.evaluate() == 5, "nothing of it is said, even inside a step"
    hooks.on_train_begin()
    told(hooks, trainer)
    recorder.expect("step 0", *FORWARD, "end of step 0", "step 1", "end of step 1", "step 2", *PASSES, "end of step 2")


def test_the_backward_of_an_accelerator_that_a_trainer_makes_anew_is_told(hooked, recorder):
    trainer, hooks = hooked
    trainer.accelerator = Accelerator()
    for _ in range(2):
        hooks.on_train_begin()
    told(hooks, trainer)
    recorder.expect("step 0", *PASSES, "end of step 0")


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda of: pickle.loads(pickle.dumps(of))])
def test_a_copy_of_a_trainer_of_transformers_tells_nothing(hooked, recorder, duplicate):
    trainer, _ = hooked
    copied = duplicate(trainer)
    assert type(copied.callbacks[0]) is SimpleNamespace
    assert copied.compute_loss.__self__ is copied and copied.accelerator.backward.__self__ is copied.accelerator


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda of: pickle.loads(pickle.dumps(of))])
def test_a_copy_of_an_accelerator_has_models_and_optimizers_that_tell_nothing(recorder, duplicate):
    accelerator = Accelerator()
    with pfo_gpu.integrations.accelerate.follow(accelerator):
        copied = duplicate(accelerator)
        (model,), (optimizer,) = copied._models, copied._optimizers
        assert optimizer.step() is optimizer and copied.backward(3) == 3
        assert [hook(model, ()) for hook in model.hooks] == [None, None]
        assert b"pfo_gpu" not in pickle.dumps(accelerator._models + accelerator._optimizers)


def test_what_an_accelerator_prepares_later_is_followed_too_and_once(recorder):
    accelerator = Accelerator()
    follow = pfo_gpu.integrations.accelerate.follow
    session = follow(accelerator)
    for again in (False, True):
        accelerator._models.clear(), accelerator._optimizers.clear()
        model, optimizer = accelerator.prepare(Hooked(), Optimizer())
        reporter = pfo_gpu.integrations.reporting.reporter_of(optimizer.step)
        assert len(model.hooks) == 2 and reporter.session is session
        if again:
            assert follow(accelerator) is session and len(model.hooks) == 2
        else:
            session.close()
            session = follow(accelerator)
            assert reporter.session is session
    session.close()


@pytest.mark.parametrize("kind", ["pipelining", "accelerate", "huggingface"])
def test_a_name_of_a_job_that_is_none_is_one_warning_and_a_wrong_argument_an_error(
    recorder, warnings, monkeypatch, kind
):
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(TrainerCallback=SimpleNamespace))
    followed = {"pipelining": Counting(), "accelerate": Accelerator(), "huggingface": Trainer(Accelerator())}[kind]
    follow = getattr(pfo_gpu.integrations, kind).follow
    with pytest.raises(TypeError, match="stepp"):
        follow(followed, stepp=1)
    monkeypatch.setenv("PFO_JOB", "my job")
    assert follow(followed) is None
    assert len(warnings()) == 1 and "my job" in warnings()[0]


def test_a_callback_for_later_refuses_a_wrong_argument_at_setup():
    with pytest.raises(TypeError, match="stepp"):
        pfo_gpu.integrations.lightning.follow(SimpleNamespace(callbacks=[]), stepp=1)
    with pytest.raises(TypeError, match="stepp"):
        pfo_gpu.integrations.megatron_bridge.callback(stepp=1)


def test_what_is_installed_and_what_is_documented_are_the_releases_of_the_one_table():
    scripts = Path(__file__).resolve().parents[3] / "scripts"
    subprocess.run([sys.executable, scripts / "framework-releases", "check"], check=True)


@pytest.mark.parametrize(
    ("release", "tested"),
    [("2.15.0+cu132", True), ("2.14.1", True), ("2.14.9", True), ("2.14.0", False), ("2.16.0a0", False)],
)
def test_a_release_is_within_the_range_or_not(release, tested):
    assert releases.is_tested("torch", release) is tested


def test_what_is_no_torchtitan_trainer_is_one_warning(recorder, warnings):
    assert pfo_gpu.integrations.torchtitan.follow(SimpleNamespace()) is None
    assert "torchtitan is not followed" in warnings()[0]
    assert recorder.said == []


def test_a_torchtitan_trainer_says_replica_shard_and_step(node):
    class Mesh(SimpleNamespace):
        def size(self):
            return self.sizes

        def get_local_rank(self):
            return self.own

    meshes = {"batch": Mesh(sizes=2, own=1), "cp": Mesh(sizes=2, own=0), "tp": None}
    schedule, stage = Schedule(), Stage(0)
    schedule._stages, schedule._n_microbatches = [stage], 8
    trainer = SimpleNamespace(
        pp_schedule=schedule, step=100, parallel_dims=SimpleNamespace(get_optional_mesh=meshes.get)
    )
    with pfo_gpu.integrations.torchtitan.follow(trainer, setup_timeout_s=60):
        schedule.step(lambda: stage.forward_one_chunk(0))
        until("the step is known", lambda: node.ranks()[0]["step"] == 100)
