"""Accelerate, in a training loop of one's own."""

import copy

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
