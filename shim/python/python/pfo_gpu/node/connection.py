"""One request to a daemon, and its answer."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any, Callable, Optional

from pfo_gpu import _native
from pfo_gpu._native import NodeError

_HEADER_BYTES = 8


class NoAnswer(NodeError):
    """The daemon may answer later."""


class Away(NodeError):
    """The daemon does not serve."""


def ask(
    path: str, frame: Callable[[str], bytes], request: object, patience_s: Optional[float], daemon: str
) -> Any:
    """Sends a request over a new connection and returns the answer.

    Args:
        path: The daemon's socket.
        frame: Encodes a JSON request as a frame.
        request: The request, as an object for JSON.
        patience_s: The longest time to wait, in seconds; None for no limit.
        daemon: The name of the daemon, for errors.

    Raises:
        NoAnswer: There is no answer in time.
        Away: The daemon does not serve.
        NodeError: The daemon refuses.
    """
    until = None if patience_s is None else time.monotonic() + patience_s
    message = frame(json.dumps(request))
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(patience_s)
            connection.connect(path)
            connection.sendall(message)
            header = _exactly(connection, _HEADER_BYTES, until)
            return json.loads(
                _native.answer(header + _exactly(connection, _native.payload_bytes(header), until))
            )
    except (socket.timeout, BlockingIOError):
        # The agent answers some requests only when pfod has answered it.
        units = "pfo-agent -u pfod" if daemon == "pfo-agent" else daemon
        raise NoAnswer(
            f"{daemon} on {path} has not answered within {patience_s} s; see `journalctl -u {units}`"
        ) from None
    except OSError as error:
        raise Away(f"{daemon} on {path}: {error.strerror or error}; {_remedy(error, daemon)}") from None


def _exactly(connection: socket.socket, count: int, until: Optional[float]) -> bytes:
    received = bytearray()
    while len(received) < count:
        if until is not None:
            # A timeout of 0 would mean none.
            connection.settimeout(max(1e-3, until - time.monotonic()))
        part = connection.recv(min(count - len(received), 1 << 20))
        if not part:
            raise ConnectionResetError(None, "the connection has ended before the answer")
        received += part
        if until is not None and time.monotonic() > until:
            raise socket.timeout
    return bytes(received)


def _remedy(error: OSError, daemon: str) -> str:
    if isinstance(error, FileNotFoundError):
        return f"is {daemon} installed and running on this node? PFO_SOCKET names another socket"
    if isinstance(error, PermissionError):
        return f"user {os.getuid()} may not open it; `python -m pfo_gpu doctor` says how to get the group"
    return f"is {daemon} running? see `systemctl status {daemon}`"
