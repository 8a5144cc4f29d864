"""The daemons of a node for programs with an event loop, such as a notebook that runs several cells
at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Optional, TypeVar, Union

from pfo_gpu.node.node import Node
from pfo_gpu.node.tuning import Tuned, TuneProgress

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    _Arguments = ParamSpec("_Arguments")

_Answer = TypeVar("_Answer")


class _Cancelled(Exception):
    """Ends a tune's thread whose caller no longer waits."""


def _awaited(
    call: Callable[Concatenate[Node, _Arguments], _Answer],
) -> Callable[Concatenate[AsyncNode, _Arguments], Awaitable[_Answer]]:
    async def awaited(self: AsyncNode, /, *arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Answer:
        return await _in_thread(functools.partial(call, self.node, *arguments, **named))

    functools.update_wrapper(awaited, call)
    return awaited


class AsyncNode:
    """The daemons of this node. It has every method of :class:`Node`, to be awaited.

    Cancelling a task ends only the waiting: a tune or a sweep that has begun continues, a sweep for
    as long as this program runs.

    Args:
        socket: As of :class:`Node`.
        agent_socket: As of :class:`Node`.
        patience_s: As of :class:`Node`.
    """

    def __init__(
        self,
        socket: Union[str, os.PathLike[str], None] = None,
        agent_socket: Union[str, os.PathLike[str], None] = None,
        *,
        patience_s: float = 10.0,
    ) -> None:
        self.node = Node(socket, agent_socket, patience_s=patience_s)

    status = _awaited(Node.status)
    swap = _awaited(Node.swap)
    rollback = _awaited(Node.rollback)
    keep = _awaited(Node.keep)
    kept_plans = _awaited(Node.kept_plans)
    forget = _awaited(Node.forget)
    profiles = _awaited(Node.profiles)
    profile = _awaited(Node.profile)
    sweep = _awaited(Node.sweep)
    tuned = _awaited(Node.tuned)
    tunes = _awaited(Node.tunes)
    watch_tune = _awaited(Node.watch_tune)
    stop_tune = _awaited(Node.stop_tune)
    guard = _awaited(Node.guard)
    load_frontier = _awaited(Node.load_frontier)
    straggler = _awaited(Node.straggler)
    answer_stragglers = _awaited(Node.answer_stragglers)
    savings = _awaited(Node.savings)
    p2p_power = _awaited(Node.p2p_power)

    async def tune(
        self,
        job: str,
        *,
        max_slowdown: float = 0.005,
        progress: Optional[Callable[[TuneProgress], object]] = None,
        **others: Any,
    ) -> Tuned:
        """As :meth:`Node.tune`, whose further arguments it takes. It calls ``progress`` on the
        thread of the event loop."""
        loop, over = asyncio.get_running_loop(), threading.Event()

        def show(now: TuneProgress) -> None:
            if over.is_set():
                raise _Cancelled
            if progress is not None:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(progress, now)

        shown = None if progress is None else show
        tune = functools.partial(self.node.tune, job, max_slowdown=max_slowdown, progress=shown, **others)
        try:
            return await _in_thread(tune)
        finally:
            over.set()

    def __repr__(self) -> str:
        return f"<pfo_gpu.AsyncNode {self.node.socket}, {self.node.agent_socket}>"


async def _in_thread(call: Callable[[], _Answer]) -> _Answer:
    """Runs a call in a daemon thread: the interpreter waits for threads of an executor when it
    ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Answer] = loop.create_future()

    def answer(deliver: Callable[[Any], None], what: object) -> None:
        def now() -> None:
            if not future.done():
                deliver(what)

        # A loop that is closed has nobody who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(now)

    def run() -> None:
        try:
            answered = call()
        except BaseException as error:
            answer(future.set_exception, error)
        else:
            answer(future.set_result, answered)

    threading.Thread(target=run, name="pfo-node", daemon=True).start()
    return await future
