"""Accelerate, in a training loop of one's own."""

import copy
import pickle

import pytest
import torch
from accelerate import Accelerator
from of_a_model import ACCUMULATED, BATCHES, STEPS, Data, Model, marks
from torch.utils.data import DataLoader

import pfo_gpu.integrations.accelerate


def train(follow=None):
    """Returns the weights."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Data(), batch_size=BATCHES))
    if follow is not None:
        follow(accelerator)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    average = copy.deepcopy(model)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model(**batch)
            average(**batch)
        model.train()
    return accelerator.unwrap_model(model).digest()


def test_steps_forwards_backwards_and_the_optimizer_are_told_and_no_bit_changes(recorder, warnings):
    sessions = []

    def follow(accelerator):
        sessions.extend(pfo_gpu.integrations.accelerate.follow(accelerator) for _ in range(2))

    alone, told = train(), train(follow)
    assert told == alone and sessions[0] is sessions[1]
    sessions[0].close()
    recorder.expect(*marks(STEPS, "goodbye"))
    assert not warnings()


@pytest.mark.parametrize("make", [object, lambda: Accelerator(cpu=True)])
def test_what_cannot_be_followed_is_one_warning(recorder, warnings, make):
    assert pfo_gpu.integrations.accelerate.follow(make()) is None
    (warning,) = warnings()
    assert "is not followed, and trains on at default clocks" in warning
    assert recorder.said == []


def iterate(accelerator, model, optimizer, steps=2):
    for _ in range(steps):
        accelerator.backward(model(torch.ones(1, 4)).sum())
        optimizer.step()
        optimizer.zero_grad()


def prepared(accelerator):
    model = torch.nn.Linear(4, 4)
    return accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_folds_that_free_what_was_prepared_are_all_told(recorder, warnings):
    accelerator, sessions = Accelerator(cpu=True), set()
    for fold in range(3):
        model, optimizer = prepared(accelerator)
        if fold != 1:
            sessions.add(pfo_gpu.integrations.accelerate.follow(accelerator))
        iterate(accelerator, model, optimizer)
        accelerator.free_memory()
    (session,) = sessions
    session.close()
    told = [f"{end}{name} 0" for name in ("forward", "backward", "optimizer_step") for end in ("", "end of ")]
    recorder.expect(*[mark for step in range(6) for mark in (f"step {step}", *told, f"end of step {step}")], "goodbye")
    assert not warnings()


def test_a_copy_of_an_optimizer_steps_itself_and_a_model_is_saved_as_without_pfo(recorder, tmp_path):
    accelerator = Accelerator(cpu=True)
    model, optimizer = prepared(accelerator)
    with pfo_gpu.integrations.accelerate.follow(accelerator):
        copied, weights = copy.deepcopy(optimizer), model.weight.clone()
        for weight in copied.param_groups[0]["params"]:
            weight.grad = torch.ones_like(weight)
        copied.step()
        assert torch.equal(model.weight, weights)
        assert not torch.equal(copied.param_groups[0]["params"][0], weights)
        for followed in (model, optimizer, accelerator):
            assert b"pfo_gpu" not in pickle.dumps(followed)
        torch.save(model, tmp_path / "model.pt")
        loaded = torch.load(tmp_path / "model.pt", weights_only=False)
        assert torch.equal(loaded(weights), model(weights))


def test_a_model_that_is_compiled_as_a_whole_runs_and_is_one_warning(recorder, warnings):
    accelerator = Accelerator(cpu=True)
    model, optimizer = prepared(accelerator)
    with pfo_gpu.integrations.accelerate.follow(accelerator):
        for one in (model, copy.deepcopy(model)):
            iterate(accelerator, torch.compile(one, backend="eager", fullgraph=True), optimizer)
    recorder.expect("goodbye")
    assert len(warnings()) == 1 and "compile it before" in warnings()[0]


def test_a_forward_that_is_interrupted_does_not_silence_what_follows(recorder):
    accelerator = Accelerator(cpu=True)
    model, optimizer = prepared(accelerator)

    def interrupt(*_):
        raise KeyboardInterrupt

    with pfo_gpu.integrations.accelerate.follow(accelerator):
        hook = model.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1, 4))
        hook.remove()
        iterate(accelerator, model, optimizer, steps=1)
    rest = ["backward 0", "end of backward 0", "optimizer_step 0", "end of optimizer_step 0", "end of step 0"]
    forwards = [f"{end}forward {forward}" for forward in (0, 1) for end in ("", "end of ")]
    recorder.expect("step 0", *forwards, *rest, "goodbye")
