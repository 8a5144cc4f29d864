"""A daemon that grants every lease and writes down what it is told, by the words of protocol/README.md."""

import re
import socket
import struct
import threading

from node import until

from pfo_gpu.instruction import NAMES

HELLO, EVENT, GOODBYE, WELCOME, REFUSAL = 1, 2, 3, 129, 130
GPU_HELD = 3


class Recorder:
    """Listens on a socket; `said` has what each connection said, in order."""

    def __init__(self, path):
        self.path = path
        self.gpu = b"GPU-1234"
        self.asked = []
        # Who holds the GPU, in the words of refusals, and how many hellos are refused for that.
        self.holder, self.refusals = "", 0
        self.said = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def expect(self, *marks, connection=0):
        """Waits for as many marks as these from a connection, and requires that they are these."""
        until(f"{marks} are said", lambda: len(self._of(connection)) >= len(marks))
        assert [mark for _, mark in self._of(connection)] == list(marks)

    def times_ns(self, connection=0):
        """When the marks of a connection happened, as the session says."""
        return [client_ns for client_ns, _ in self._of(connection)]

    def marks(self, connection=0):
        """What a connection has said so far."""
        return [mark for _, mark in self._of(connection)]

    def _of(self, connection):
        return list(self.said[connection]) if connection < len(self.said) else []

    def _accept(self):
        while True:
            stream, _ = self._listener.accept()
            said = []
            self.said.append(said)
            threading.Thread(target=self._serve, args=(stream, said), daemon=True).start()

    def _serve(self, stream, said):
        with stream, stream.makefile("rb") as frames:
            while header := frames.read(8):
                length, version, kind = struct.unpack("<IHH", header)
                payload = frames.read(length)
                assert version == 1
                if kind == HELLO:
                    self.asked.append(asked_gpu(payload))
                    if self.refusals > 0:
                        self.refusals -= 1
                        stream.sendall(refusal(GPU_HELD, self.holder, "close that session first"))
                        break
                    stream.sendall(welcome(self.gpu))
                elif kind == EVENT:
                    _, client_ns = struct.unpack_from("<QQ", payload)
                    said.append((client_ns, mark(payload[16:])))
                elif kind == GOODBYE:
                    said.append((0, "goodbye"))


def asked_gpu(payload):
    """The GPU by which a hello asks for its lease."""
    (found,) = re.findall(rb"GPU-[0-9a-f-]+", payload)
    return found.decode()


def mark(payload):
    """A mark as text: `step 3`, `end of step 3`, `forward 2`, `end of forward 2`, `forward 2 of chunk 1`."""
    (variant,) = struct.unpack_from("<I", payload)
    end = "end of " if variant % 2 else ""
    if variant < 2:
        return f"{end}step {struct.unpack_from('<Q', payload, 4)[0]}"
    instruction, chunk, microbatch = struct.unpack_from("<IHI", payload, 4)
    of_chunk = f" of chunk {chunk}" if chunk else ""
    return f"{end}{NAMES[instruction]} {microbatch}{of_chunk}"


def text(value):
    return struct.pack("<Q", len(value)) + value


def refusal(code, message, remedy):
    payload = struct.pack("<I", code) + text(message.encode()) + text(remedy.encode())
    return struct.pack("<IHH", len(payload), 1, REFUSAL) + payload


def welcome(gpu):
    payload = text(b"recorder") + struct.pack("<Q", 1) + text(gpu) + text(b"model")
    payload += struct.pack("<Q", 60_000)
    return struct.pack("<IHH", len(payload), 1, WELCOME) + payload
