#!/usr/bin/env python3
"""A client of pfod without libpfo: leases a GPU, sends the events of two steps and says goodbye.

    replay.py GPU [SOCKET]     a session with pfod; GPU is a UUID or a PCI bus id as NVML writes it
    replay.py --check          compare the frames that it builds with those of session.json
"""

import contextlib
import json
import os
import pathlib
import socket
import struct
import sys
import time

HELLO, EVENT, GOODBYE, WELCOME, REFUSAL, CLOSING = 1, 2, 3, 129, 130, 131
STEP_BEGIN, STEP_END, INSTRUCTION_BEGIN, INSTRUCTION_END = range(4)
FORWARD, BACKWARD = 0, 1


def frame(kind, payload=b""):
    return struct.pack("<IHH", len(payload), 1, kind) + payload


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def hello(client, job, gpu, microbatches):
    """Rank 1, the last of two stages."""
    position = struct.pack("<7I", 1, 1, 0, 0, 2, 1, 1)
    name = struct.pack("<I", ":" in gpu) + text(gpu)
    rest = struct.pack("<BIQ", 1, microbatches, 0)
    return frame(HELLO, text(client) + text(job) + position + name + rest)


def marks(steps, microbatches):
    for step in range(steps):
        yield struct.pack("<IQ", STEP_BEGIN, step)
        for microbatch in range(microbatches):
            for instruction in (FORWARD, BACKWARD):
                for mark in (INSTRUCTION_BEGIN, INSTRUCTION_END):
                    yield struct.pack("<IIHI", mark, instruction, 0, microbatch)
        yield struct.pack("<IQ", STEP_END, step)


def session(job, client, gpu, now_ns):
    """The frames of a session; the answer to the first one must be Welcome."""
    yield hello(client, job, gpu, microbatches=2)
    for sequence, mark in enumerate(marks(steps=2, microbatches=2)):
        yield frame(EVENT, struct.pack("<QQ", sequence, now_ns(sequence)) + mark)
    yield frame(GOODBYE)


def check():
    kit = json.loads(pathlib.Path(__file__).with_name("session.json").read_text())
    ours = [f["bytes"] for f in kit["frames"] if f["direction"] == "to daemon"]
    gpu = "GPU-8d4e1b72-0c93-4f6a-b2e5-7a9c3d5f1e08"
    built = session("llama-7b", "libpfo 0.1.0", gpu, lambda n: 90_000_000_000 + n * 5_000_000)
    for number, (built, recorded) in enumerate(zip(built, ours)):
        assert built.hex() == recorded, f"frame {number}: {built.hex()} is not {recorded}"


def read_frame(stream):
    length, version, kind = struct.unpack("<IHH", stream.read(8))
    return kind, stream.read(length)


def own_devices():
    """Open descriptors of the GPU device files that this process can open: the proof for pfod."""
    opened = []
    for path in pathlib.Path(os.environ.get("PFO_DEVICES", "/dev")).glob("nvidia[0-9]*"):
        with contextlib.suppress(OSError):
            opened.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    return opened[:64]


def replay(gpu, path="/run/pfo/pfod.sock"):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    frames = session("replay", "replay.py", gpu, lambda _: time.monotonic_ns())
    devices = own_devices()
    socket.send_fds(connection, [next(frames)], devices)
    for descriptor in devices:
        os.close(descriptor)
    kind, payload = read_frame(connection.makefile("rb"))
    if kind != WELCOME:
        sys.exit(f"no session: frame of kind {kind}: {payload!r}")
    for number, frame_bytes in enumerate(frames):
        connection.sendall(frame_bytes)
        time.sleep(0.01)
    print(f"sent {number} events and a goodbye")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        check()
    elif len(sys.argv) in (2, 3):
        replay(*sys.argv[1:])
    else:
        sys.exit(__doc__)
