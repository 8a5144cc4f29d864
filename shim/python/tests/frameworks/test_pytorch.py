"""Training loops in plain PyTorch, and torchtitan's without a pipeline."""

import copy
import functools
import gc
import weakref
from types import SimpleNamespace

import pfo_gpu.integrations.pytorch
import pfo_gpu.integrations.torchtitan
import pytest
import torch
from model import batch, digest, stage

STEPS = 3
PASSES = ["forward", "backward"]
REPLICAS = "replicated_training:train"


def marks(*steps, first=0):
    """Steps with these instructions, of which those of a name are counted."""
    told = []
    for number, names in enumerate(steps, first):
        told.append(f"step {number}")
        for place, name in enumerate(names):
            unit = f"{name} {names[:place].count(name)}"
            told += [unit, f"end of {unit}"]
        told.append(f"end of step {number}")
    return told


def train(follow=None, accumulated=1, wrap=lambda module: module, run=None):
    """Returns the weights."""
    module = stage(0)
    model, optimizer = wrap(module), torch.optim.SGD(module.parameters(), lr=0.1)
    session = None if follow is None else follow(model, optimizer)
    for step in range(STEPS):
        for index in range(accumulated):
            inputs, target = batch(step * accumulated + index)
            output = model(inputs)
            torch.nn.functional.mse_loss(getattr(output, "logits", output), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(inputs)
        model.eval()
        model(inputs)
        model.train()
    if session is not None:
        session.close()
    return digest([module])


@pytest.mark.parametrize("accumulated", [1, 3])
def test_a_loop_is_told_and_no_bit_changes(recorder, warnings, accumulated):
    follow = pfo_gpu.integrations.pytorch.follow
    assert train(follow, accumulated) == train(None, accumulated)
    step = [*PASSES * accumulated, "optimizer_step"]
    recorder.expect(*marks(*[step] * STEPS), "goodbye")
    assert not warnings()


class Answer(torch.nn.Module):
    """A model that returns its output as those of Transformers do."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, inputs):
        hidden = self.module(inputs)
        return SimpleNamespace(logits=hidden, hidden=[hidden * 2, None], name="answer")


@pytest.mark.parametrize("wrap", [Answer, functools.partial(torch.compile, backend="eager")], ids=["nested", "compiled"])
def test_a_model_that_returns_anything_or_is_compiled_is_told(recorder, warnings, wrap):
    assert train(pfo_gpu.integrations.pytorch.follow, wrap=wrap) == train(wrap=wrap)
    recorder.expect(*marks(*[[*PASSES, "optimizer_step"]] * STEPS), "goodbye")
    assert not warnings()


def test_a_checkpointed_forward_that_runs_again_is_a_part_of_its_backward(recorder, warnings):
    class Checkpointed(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, inputs):
            return torch.utils.checkpoint.checkpoint(self.module, inputs, use_reentrant=False)

    assert train(pfo_gpu.integrations.pytorch.follow, wrap=Checkpointed) == train(wrap=Checkpointed)
    recorder.expect(*marks(*[[*PASSES, "optimizer_step"]] * STEPS), "goodbye")
    assert not warnings()


def test_followed_twice_a_loop_reports_once_and_a_copy_of_its_model_nothing(recorder, warnings):
    follow = pfo_gpu.integrations.pytorch.follow
    model = stage(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = follow(model, optimizer)
    assert follow(model, optimizer) is session
    copied = copy.deepcopy(model)
    copied(batch(0)[0]).sum().backward()
    model(batch(0)[0]).sum().backward()
    optimizer.step()
    session.close()
    recorder.expect(*marks([*PASSES, "optimizer_step"]), "goodbye")
    again = follow(model, optimizer)
    model(batch(0)[0]).sum().backward()
    optimizer.step()
    again.close()
    recorder.expect(*marks([*PASSES, "optimizer_step"]), "goodbye", connection=1)
    assert not warnings()


def test_a_step_ends_when_each_of_several_optimizers_has_stepped(recorder):
    model = stage(0)
    optimizers = [torch.optim.SGD([weight], lr=0.1) for weight in model.parameters()]
    with pfo_gpu.integrations.pytorch.follow(model, optimizers):
        for _ in range(2):
            model(batch(0)[0]).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
    recorder.expect(*marks(*[[*PASSES, "optimizer_step", "optimizer_step"]] * 2), "goodbye")


def test_a_backward_that_fails_is_the_trainers_error_and_the_next_step_is_whole(recorder):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context, inputs):
            return inputs.clone()

        @staticmethod
        def backward(context, gradient):
            raise RuntimeError("out of memory")

    model = stage(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pfo_gpu.integrations.pytorch.follow(model, optimizer):
        hook = model[0].register_forward_hook(lambda _module, _inputs, output: Fails.apply(output))
        with pytest.raises(RuntimeError, match="out of memory"):
            model(batch(0)[0]).sum().backward()
        hook.remove()
        optimizer.step()
        model(batch(0)[0]).sum().backward()
        optimizer.step()
    recorder.expect(*marks(*[[*PASSES, "optimizer_step"]] * 2), "goodbye")


def test_a_backward_that_fails_without_a_step_of_the_optimizer_silences_nothing(recorder):
    model = stage(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fail(_gradient):
        raise RuntimeError("out of memory")

    with pfo_gpu.integrations.pytorch.follow(model, optimizer):
        output = model(batch(0)[0])
        output.register_hook(fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            output.sum().backward()
        model(batch(0)[0]).sum().backward()
        optimizer.step()
    recorder.expect(*marks([*PASSES * 2, "optimizer_step"]), "goodbye")


def test_a_model_that_nothing_holds_is_freed_and_its_session_ends(recorder):
    model = stage(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pfo_gpu.integrations.pytorch.follow(model, optimizer)
    alive = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert alive() is None
    recorder.expect("goodbye")


def test_what_is_no_module_is_one_warning(recorder, warnings):
    assert pfo_gpu.integrations.pytorch.follow(object(), SimpleNamespace(step=print)) is None
    assert len(warnings()) == 1 and "is not followed, and trains on at default clocks" in warnings()[0]
    assert recorder.said == []


class Titan:
    """What of torchtitan's trainer runs a step without a pipeline."""

    pp_schedule, step, gradient_accumulation_steps = None, 7, 2

    def __init__(self, graphs):
        self.model_parts = [stage(0)]
        self.optimizers = torch.optim.SGD(self.model_parts[0].parameters(), lr=0.1)
        self.parallel_dims = SimpleNamespace(get_optional_mesh=lambda name: None)
        self.config = SimpleNamespace(training=SimpleNamespace(disable_cuda_graphs=not graphs))

    def forward_backward_step(self, *, input_dict, labels):
        torch.nn.functional.mse_loss(self.model_parts[0](input_dict), labels).backward()

    def train_step(self, data_iterator):
        self.optimizers.zero_grad()
        groups = [next(data_iterator) for _ in range(self.gradient_accumulation_steps)]
        for inputs, labels in groups:
            self.forward_backward_step(input_dict=inputs, labels=labels)
        self.optimizers.step()


@pytest.mark.parametrize("graphs", [False, True], ids=["phases", "one graph"])
def test_torchtitan_without_a_pipeline_is_one_stage(recorder, warnings, graphs):
    def run(follow):
        trainer = Titan(graphs)
        session = follow(trainer)
        assert follow(trainer) is session
        data = map(batch, range(100))
        for _ in range(STEPS):
            trainer.train_step(data)
        if session is not None:
            session.close()
        return digest(trainer.model_parts)

    assert run(pfo_gpu.integrations.torchtitan.follow) == run(lambda trainer: None)
    passes = ["forward_backward"] * 2 if graphs else PASSES * 2
    recorder.expect(*marks(*[["load", *passes, "optimizer_step"]] * STEPS, first=Titan.step), "goodbye")
    assert not warnings()


@pytest.mark.parametrize("kind", ["DDP", "FSDP"])
def test_replicas_are_told_and_no_bit_changes(ranks, recorders, kind):
    training = {"kind": kind, "steps": STEPS}
    alone, _ = ranks.train(REPLICAS, recorders.environments, **training, followed=False).results()
    told, warnings = ranks.train(REPLICAS, recorders.environments, **training, followed=True).results()
    assert told == alone
    assert not any(warnings)
    recorders.expect(told, STEPS)
