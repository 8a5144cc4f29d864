"""The session of a rank."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from functools import partial
from typing import Callable, Optional, Union

from pfo_gpu import _native, cuda
from pfo_gpu.instruction import Name
from pfo_gpu.job import agreed_name, initialized_distributed
from pfo_gpu.span import Span

# How long an interpreter that ends may wait for its GPU to get to the last event.
_LAST_PATIENCE_S = 2.0

# `PFO_CODE_NO_ANSWER` in `pfo.h`.
_NO_ANSWER = 152
_GPU_HELD = 4
_LATE_ANSWER_POLL_S = 0.1

_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


class Session(_native.Session):
    """A rank's session with pfod. It holds the lease of the rank's GPU whenever the daemon grants it.

    Opening a session waits for the daemon's answer for at most ``setup_timeout_s``. It is the only call
    that raises: ``ValueError`` if the description is invalid. Without a daemon, and when it refuses, the
    session is valid too: it logs one warning, training runs at default clocks, and the session keeps
    trying in the background. No other call blocks, raises or prints.

    A session of the same job, rank and GPU that this process has open, as a notebook that runs a cell again
    has, is closed first.

    In a process forked from the one that opened it, and as a copy or after unpickling, a session
    does nothing.

    Args:
        job: The job's name, the same in all of its ranks; else as :func:`pfo_gpu.job.agreed_name` finds it.
        gpu: The GPU: a UUID (``GPU-…``), a PCI bus id, or a CUDA ordinal of this process, as number,
            ``cuda:1`` or ``torch.device``; else ``PFO_GPU``, else PyTorch's current device if it is
            not 0, else the only GPU on which this process has a CUDA context, that it sees or that it
            may open, else the launcher's local rank. If nothing says which, there is no lease.
        socket: The daemon's socket; else ``PFO_SOCKET``, else ``/run/pfo/pfod.sock``.
        rank: The global rank; else that of ``torch.distributed`` if it is initialized, else that of the
            launcher (``torchrun``, Open MPI, PMI, Slurm), else 0.
        pp_rank: The pipeline stage, counted from 0.
        dp_rank: The data-parallel rank.
        tp_rank: The tensor-parallel rank.
        pp_degree: The number of pipeline stages.
        dp_degree: The number of data-parallel replicas.
        tp_degree: The number of tensor-parallel shards.
        num_microbatches: Of each step; None if it is unknown or varies.
        first_step: The number of the first step; not 0 if training continues from a checkpoint.
        setup_timeout_s: The longest time to wait for the daemon's answer, in seconds.
        plan: The plan with which the job begins, the same for every rank: a file that ``pfoctl plan export``
            wrote, or ``"auto"`` for the one that ``pfoctl plan load --for`` keeps for the job, if there is
            one; else ``PFO_PLAN``. A plan that cannot be used is one warning, and the job trains at default
            clocks. :attr:`plan_problem` returns the reason.
        sync: When a call counts. ``"stream"``: when the GPU reaches this point of its current stream,
            while the host runs ahead. ``"device"``: when the GPU has finished all work; the call
            waits for that (PyTorch only). ``"cpu"``: at once, as always without CUDA.
        stream: Returns the handle of the stream of the next work, for ``sync="stream"``. The default is
            PyTorch's current stream, and without PyTorch the default stream.

    Attributes:
        job: The job's name.
        rank: The global rank.
    """

    job: Optional[str] = None
    rank: int = 0
    _asked: Optional[str] = None

    def __init__(
        self,
        *,
        job: Optional[str] = None,
        gpu: object = None,
        socket: Union[str, os.PathLike[str], None] = None,
        rank: Optional[int] = None,
        pp_rank: int = 0,
        dp_rank: int = 0,
        tp_rank: int = 0,
        pp_degree: int = 1,
        dp_degree: int = 1,
        tp_degree: int = 1,
        num_microbatches: Optional[int] = None,
        first_step: int = 0,
        setup_timeout_s: float = 2.0,
        plan: Union[str, os.PathLike[str], None] = None,
        sync: str = "stream",
        stream: Optional[Callable[[], int]] = None,
    ) -> None:
        timing: Callable[..., object]
        if sync == "device":
            timing = cuda.synchronize(gpu)
        elif stream is None:
            timing = cuda.current_stream(gpu)
        else:
            timing = partial(_ask, stream)
        self.job = agreed_name() if job is None else job
        self.rank = _own_rank() if rank is None else rank
        self._asked = cuda.driven(gpu)
        self._replace_former()
        begin = partial(
            self._open,
            job=self.job,
            gpu=self._asked,
            socket=socket,
            rank=self.rank,
            pp_rank=pp_rank,
            dp_rank=dp_rank,
            tp_rank=tp_rank,
            pp_degree=pp_degree,
            dp_degree=dp_degree,
            tp_degree=tp_degree,
            num_microbatches=num_microbatches,
            first_step=first_step,
            setup_timeout_s=setup_timeout_s,
            plan=plan,
            sync=sync,
            cuda=timing,
        )
        begin()
        problem = self.problem
        if problem is not None and self._is_held_by_former(problem):
            begin()
            problem = self.problem
        _open_sessions.add(self)
        if problem is not None:
            logging.getLogger("pfo_gpu").warning("training at default clocks: %s", problem)
            if problem.code == _NO_ANSWER:
                late = threading.Thread(target=_report_late_answer, args=(weakref.ref(self),), daemon=True)
                late.start()
        plan_problem = self.plan_problem
        if plan_problem is not None:
            logging.getLogger("pfo_gpu").warning("training without the plan: %s", plan_problem)

    def _replace_former(self) -> None:
        # The daemon would wait for its end, and in vain.
        for former in list(_open_sessions):
            if (former.job, former.rank, former._asked) == (self.job, self.rank, self._asked):
                former.close()

    def _is_held_by_former(self, problem: _native.Problem) -> bool:
        # Of this process, with the same GPU under another name. It is closed.
        if problem.code != _GPU_HELD:
            return False
        for former in list(_open_sessions):
            if (former.job, former.rank) == (self.job, self.rank) and str(former.gpu) in problem.message:
                former.close()
                return True
        return False

    def step(self) -> Span:
        """A step: ``with session.step(): …``, or a decorator of the function that runs one."""
        return Span(self.step_begin, self.step_end)

    def instruction(self, name: Name, microbatch: Optional[int] = None, chunk: int = 0) -> Span:
        """An instruction: ``with session.instruction("forward", microbatch=m): …``, or a decorator."""
        return Span(partial(self.instruction_begin, name, microbatch, chunk), self.instruction_end)

    def __repr__(self) -> str:
        if self.closed:
            return f"<pfo_gpu.Session of rank {self.rank} of {self.job}, closed>"
        state = self.gpu or f"without a lease: {self.problem}"
        return f"<pfo_gpu.Session of rank {self.rank} of {self.job}, {state}, timing: {self.timing}>"

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        # A spawned worker and a checkpoint get a session that has ended.
        return type(self).__new__, (type(self),)


@atexit.register
def _end_sessions() -> None:
    # CUDA must still be loaded: nothing may wait for a GPU whose driver library is being torn down.
    _native.wait_for_gpu(_LAST_PATIENCE_S)
    for session in list(_open_sessions):
        session.close()


def _own_rank() -> int:
    distributed = initialized_distributed()
    if distributed is not None:
        return int(distributed.get_rank())
    return _native.launched_rank() or 0


def _ask(stream: Callable[[], int], _ordinal: Optional[int]) -> int:
    return stream()


def _report_late_answer(session: weakref.ref[Session]) -> None:
    while True:
        time.sleep(_LATE_ANSWER_POLL_S)
        opened = session()
        if opened is None or opened.closed:
            return
        if opened._is_settled():
            problem = opened.problem
            if problem is not None:
                logging.getLogger("pfo_gpu").warning("training at default clocks: %s", problem)
            return
        del opened
