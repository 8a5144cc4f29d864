"""As much of PyTorch as makes processes believe that they wait or work on GPUs."""

import os
import time
from types import SimpleNamespace

__version__ = "pretended"
_gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")

cuda = SimpleNamespace(
    is_available=lambda: True,
    init=lambda: None,
    device_count=lambda: len(_gpus),
    set_device=lambda ordinal: None,
    synchronize=lambda: None,
)


def zeros(size, device):
    return [0.0] * size


float16 = "float16"


def randn(*size, device, dtype):
    return [0.0] * len(size)


def empty_like(matrix):
    return list(matrix)


def mm(one, other, out):
    time.sleep(0.002)
