"""Transfers that come to pass at once, but for the one that nothing answers."""

import os


def is_available():
    return True


def is_initialized():
    return False


def is_nccl_available():
    return os.environ.get("PRETENDED_NCCL", "1") == "1"


def init_process_group(backend, init_method, rank, world_size, timeout):
    assert (backend, world_size) == ("nccl", 2) and init_method.startswith("file:///")


def send(message, destination):
    pass


def recv(message, source):
    pass


def irecv(message, source):
    pass
