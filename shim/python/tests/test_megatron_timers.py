"""What following Megatron-Core does to its timers. Megatron-Core itself is in `frameworks/`."""

import functools
import sys
from types import ModuleType, SimpleNamespace

import pytest

import pfo_gpu.integrations.megatron


class Timer:
    def start(self, barrier=False):
        pass

    stop = start


class Timers:
    """Timers of Megatron-Core."""

    def __call__(self, name, log_level=None):
        return Timer()


@pytest.fixture
def config(recorder, monkeypatch):
    """The configuration of a model of one stage, in a Megatron-Core without a calculator of microbatches."""

    def get_num_microbatches():
        raise AttributeError("'NoneType' object has no attribute 'get'")

    state = {
        f"get_{dimension}_{what}": lambda *_, number=number, **__: number
        for dimension in ("pipeline_model_parallel", "data_parallel", "tensor_model_parallel")
        for what, number in (("rank", 0), ("world_size", 1))
    }
    table = lambda microbatches, chunks, group: [(m, 0) for m in range(microbatches)]
    modules = {
        "megatron": {},
        "megatron.core": {"parallel_state": SimpleNamespace(**state)},
        "megatron.core.num_microbatches_calculator": {"get_num_microbatches": get_num_microbatches},
        "megatron.core.pipeline_parallel": {},
        "megatron.core.pipeline_parallel.schedules": {"get_schedule_table": table},
        "torch": {
            "distributed": SimpleNamespace(get_rank=lambda: 0),
            "is_grad_enabled": lambda: True,
            "cuda": SimpleNamespace(is_initialized=lambda: False),
        },
    }
    for name, attributes in modules.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    return SimpleNamespace(
        timers=Timers(),
        virtual_pipeline_model_parallel_size=None,
        microbatch_group_size_per_vp_stage=1,
    )


def run_schedule(config, forward_only):
    """As Megatron-Core's schedules do."""
    config.timers("forward-backward", log_level=1).start(barrier=False)
    config.timers("forward-compute", log_level=2).start()
    config.timers("forward-compute").stop()
    if not forward_only:
        config.timers("backward-compute", log_level=2).start()
        config.timers("backward-compute").stop()
    config.timers("forward-backward").stop()


STEP = ["forward 0", "end of forward 0", "backward 0", "end of backward 0"]


def test_a_follow_that_fails_leaves_the_timers_as_they_were(config, recorder, warnings):
    for _ in range(2):
        assert pfo_gpu.integrations.megatron.follow(config) is None
    assert type(config.timers) is Timers and recorder.said == []
    assert len(warnings()) == 2 and "give num_microbatches" in warnings()[0]
    run_schedule(config, forward_only=False)
    session = pfo_gpu.integrations.megatron.follow(config, num_microbatches=1)
    assert pfo_gpu.integrations.megatron.follow(config, num_microbatches=1) is session
    run_schedule(config, forward_only=False)
    recorder.expect("step 0", *STEP, "end of step 0")


def test_a_session_in_the_place_of_the_timers_is_one_warning(config, recorder, warnings):
    timers = config.timers
    with pfo_gpu.Session() as session:
        assert pfo_gpu.integrations.megatron.follow(config, session, num_microbatches=1) is None
    assert config.timers is timers and len(warnings()) == 1 and "timers is a Session" in warnings()[0]


def test_a_parallel_state_that_is_not_initialized_is_one_warning(config, recorder, warnings, monkeypatch):
    def fail():
        raise AssertionError("pipeline_model parallel group is not initialized")

    state = sys.modules["megatron.core"].parallel_state
    monkeypatch.setattr(state, "get_pipeline_model_parallel_rank", fail)
    assert pfo_gpu.integrations.megatron.follow(config, num_microbatches=1) is None
    assert type(config.timers) is Timers
    assert len(warnings()) == 1 and "group is not initialized" in warnings()[0]


def test_what_runs_forward_only_is_no_training(config, recorder):
    session = pfo_gpu.integrations.megatron.follow(config, num_microbatches=1)
    run_schedule(config, forward_only=True)
    run_schedule(config, forward_only=False)
    session.close()
    recorder.expect("step 0", *STEP, "end of step 0", "goodbye")


def logged(run):
    """A decorator of the trainer's own."""

    @functools.wraps(run)
    def log(*arguments, **named):
        return run(*arguments, **named)

    return log


class DecoratedTimers(Timers):
    """Timers that a trainer has put between the schedule and those that pfo knows."""

    def __init__(self, timers):
        self.timers = timers

    def __call__(self, name, log_level=None):
        timer = self.timers(name, log_level)
        return SimpleNamespace(start=logged(logged(timer.start)), stop=logged(timer.stop))


@pytest.mark.parametrize("decorated", ["timers", "schedule"])
def test_what_runs_forward_only_is_no_training_whatever_is_put_in_between(config, recorder, decorated):
    session = pfo_gpu.integrations.megatron.follow(config, num_microbatches=1)
    run = run_schedule
    if decorated == "timers":
        config.timers = DecoratedTimers(config.timers)
    else:
        run = logged(run)
    run(config, forward_only=True)
    run(config, forward_only=False)
    session.close()
    recorder.expect("step 0", *STEP, "end of step 0", "goodbye")


def test_closed_and_followed_again_the_timers_report_to_the_new_session(config, recorder):
    pfo_gpu.integrations.megatron.follow(config, num_microbatches=1).close()
    pfo_gpu.integrations.megatron.follow(config, num_microbatches=1)
    run_schedule(config, forward_only=False)
    recorder.expect("step 0", *STEP, "end of step 0", connection=1)


def test_a_number_of_microbatches_that_gets_lost_while_training_raises_nothing(config, recorder, monkeypatch):
    calculator = sys.modules["megatron.core.num_microbatches_calculator"]
    failing = calculator.get_num_microbatches
    monkeypatch.setattr(calculator, "get_num_microbatches", lambda: 1)
    pfo_gpu.integrations.megatron.follow(config)
    monkeypatch.setattr(calculator, "get_num_microbatches", failing)
    run_schedule(config, forward_only=False)
    monkeypatch.setattr(calculator, "get_num_microbatches", lambda: 1)
    run_schedule(config, forward_only=False)
    recorder.expect("step 0", *STEP, "end of step 0")


@pytest.mark.parametrize(
    "spelled",
    [
        {"cuda_graph_scope": ["<CudaGraphScope.full_iteration: 1>"]},
        {"cuda_graph_scope": "full_iteration"},
        {"cuda_graph_impl": "full_iteration", "cuda_graph_scope": None, "cuda_graph_modules": []},
        {"cuda_graph_modules": [SimpleNamespace(name="full_iteration")]},
    ],
)
def test_a_graph_of_the_full_iteration_is_refused_with_the_reason(config, recorder, warnings, spelled):
    vars(config).update(spelled)
    assert pfo_gpu.integrations.megatron.follow(config, num_microbatches=1) is None
    assert type(config.timers) is Timers and recorder.said == []
    (option,) = [name for name, value in spelled.items() if value]
    assert f"full_iteration out of {option}" in warnings()[0]


@pytest.mark.parametrize(
    "spelled",
    [
        {"cuda_graph_impl": "local", "cuda_graph_modules": [SimpleNamespace(name="attn")]},
        {"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration_inference"},
    ],
)
def test_a_graph_of_layers_or_of_inference_is_no_reason(config, recorder, warnings, spelled):
    vars(config).update(spelled)
    pfo_gpu.integrations.megatron.follow(config, num_microbatches=1).close()
    assert not warnings()
