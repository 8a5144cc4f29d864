"""A model and its data, the same in every training."""

import hashlib

import torch

WIDTH = 16
MICROBATCHES = 8
BATCH = 2 * MICROBATCHES


def stage(index):
    """The part of the model that one stage has."""
    torch.manual_seed(index)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())


def batch(step):
    """The inputs of a step, and what should come out."""
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)


def digest(modules):
    """All bits of the weights."""
    weights = [weight.detach() for module in modules for weight in module.parameters()]
    weights = [getattr(weight, "_local_tensor", weight).numpy().tobytes() for weight in weights]
    return hashlib.sha256(b"".join(weights)).hexdigest()


def bits(value):
    """All bits of a number."""
    return float(value).hex()
