"""The session of a rank."""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from functools import partial
from typing import Any, Callable, Optional, Union

from pfo_gpu import _native, cuda, watch
from pfo_gpu.instruction import Name
from pfo_gpu.job import agreed_name, initialized_distributed
from pfo_gpu.span import Span

# How long an interpreter that ends may wait for its GPU to get to the last event.
_LAST_PATIENCE_S = 2.0

_GPU_HELD = 4
# What pfod says of a GPU that a session of the same process holds.
_OWN_REMEDY = "close that session first"
_CLOSED_SESSION_POLL_S = 0.05

# How the daemon names each lease that this process has had.
_held: set[str] = set()

_sessions: weakref.WeakValueDictionary[int, Session] = weakref.WeakValueDictionary()


class Session(_native.Session):
    """A rank's session with pfod. It holds the lease of the rank's GPU whenever pfod grants it.

    Opening a session waits for pfod's answer, for at most ``setup_timeout_s``. Without an answer,
    and if pfod refuses, the session is valid too: it logs one warning (logger ``pfo_gpu``),
    training runs at default clocks, and the session keeps trying in the background.

    The calls of the training loop print nothing and raise nothing but what Ctrl-C raises. They do
    not block, except with ``sync="device"``, or while CUDA's launch queue is full.

    If this process has a session of the same job, rank and GPU open, as a notebook that runs a cell
    again has, opening a new one closes it first. If another session of this process holds the GPU,
    :attr:`problem` names it.

    In a process forked from the one that opened it, and as a copy or after unpickling, a session
    does nothing.

    Args:
        job: The job's name, the same in all of its ranks; defaults to that of
            :func:`pfo_gpu.job.agreed_name`, which may wait for the other ranks.
        gpu: The GPU: a UUID (``GPU-…``), a PCI bus id, or a CUDA ordinal of this process, as
            number, ``cuda:1`` or ``torch.device``. Defaults to ``PFO_GPU``, else to PyTorch's
            current device unless that is 0, else to the only GPU on which this process has a CUDA
            context, else to the only one in ``CUDA_VISIBLE_DEVICES``, else to the launcher's local
            rank, else to the only GPU that this process may open or that the node has. If none of
            these names a GPU, or if CUDA context and local rank contradict each other, there is no
            lease.
        socket: The socket of pfod; defaults to ``PFO_SOCKET``, else to ``/run/pfo/pfod.sock``.
        rank: The global rank; defaults to that of ``torch.distributed`` if it is initialized, else
            to that of the launcher (``torchrun``, Open MPI, PMI, Slurm), else to 0.
        pp_rank: The pipeline stage, counted from 0.
        dp_rank: The data-parallel rank.
        tp_rank: The tensor-parallel rank.
        pp_degree: The number of pipeline stages.
        dp_degree: The number of data-parallel replicas.
        tp_degree: The number of tensor-parallel shards.
        num_microbatches: The microbatches of a step, at least 1; None if unknown or varying.
        first_step: The number of the first step; not 0 if training continues from a checkpoint.
        setup_timeout_s: The longest time to wait for pfod's answer, in seconds. The session waits
            for as long again until pfod notices that this process has closed a session of the same
            GPU.
        plan: The plan with which the job begins, the same for every rank: a file that ``pfoctl plan
            export`` wrote, or ``"auto"`` for the plan that ``pfoctl plan load --for`` keeps for the
            job, if there is one; defaults to ``PFO_PLAN``. If the plan cannot be used, one warning
            says so, the job trains at default clocks, and :attr:`plan_problem` returns the reason.
            Without a plan, a kept one is used as well, but only ``pfoctl status`` tells if it does
            not fit.
        sync: When a call counts. ``"stream"``: when the GPU reaches this point of its current
            stream, while the host runs ahead; work on other streams counts as far as the current
            stream waits for it. ``"device"``: when the GPU has finished the work of all streams;
            the call waits for that (PyTorch only). ``"cpu"``: at once. Without CUDA, every call
            counts at once.
        stream: A function that returns the handle of the stream of the next work, for
            ``sync="stream"``. The default is PyTorch's current stream, else CuPy's, and without
            either the legacy default stream.

    Raises:
        ValueError: An argument, or a variable that replaces it, is invalid, or nothing names the
            job.
        TypeError: An argument is of another type.

    Attributes:
        job: The job's name.
        rank: The global rank.
        was_replaced: Whether a later session of the same job, rank and GPU in this process has
            closed this one.
    """

    job: Optional[str] = None
    rank: int = 0
    was_replaced: bool = False
    _asked: Optional[str] = None
    _watched: watch.Watched
    _quiet: int = 0

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
        numbers: dict[str, Any] = {
            "rank": self.rank,
            "pp_rank": pp_rank,
            "dp_rank": dp_rank,
            "tp_rank": tp_rank,
            "pp_degree": pp_degree,
            "dp_degree": dp_degree,
            "tp_degree": tp_degree,
            "num_microbatches": num_microbatches,
            "first_step": first_step,
        }
        for name, number in numbers.items():
            # A launcher may say -1 for what it does not know.
            if number is not None and not 0 <= number < 1 << (64 if name == "first_step" else 32):
                raise ValueError(f"{name} is {number}, which is out of range")
        self._replace_former()
        begin = partial(
            self._open,
            job=self.job,
            gpu=self._asked,
            socket=socket,
            setup_timeout_s=setup_timeout_s,
            plan=plan,
            sync=sync,
            cuda=timing,
            **numbers,
        )
        begin()
        holder = self._holder_in_this_process(super().problem)
        # The same rank, which has spelled its GPU otherwise.
        if holder is not None and (holder.job, holder.rank) == (self.job, self.rank):
            holder._make_way()
            begin()
        deadline = time.monotonic() + setup_timeout_s
        while self._waits_for_closed_one() and time.monotonic() < deadline:
            time.sleep(_CLOSED_SESSION_POLL_S)
            begin()
        if self.gpu is not None:
            _held.add(self._lease_in_words())
        problem = self.problem
        if problem is not None:
            logging.getLogger("pfo_gpu").warning("training at default clocks: %s", problem)
        self._watched = watch.Watched(None if problem is None else problem.code)
        _sessions[id(self)] = self
        watch.start(_open_sessions)
        plan_problem = self.plan_problem
        if plan_problem is not None:
            logging.getLogger("pfo_gpu").warning("training without the plan: %s", plan_problem)

    def _replace_former(self) -> None:
        # The daemon would wait for its end, and in vain.
        for former in _open_sessions():
            if (former.job, former.rank, former._asked) == (self.job, self.rank, self._asked):
                former._make_way()

    def _make_way(self) -> None:
        self.was_replaced = True
        self.close()

    @property
    def problem(self) -> Optional[_native.Problem]:
        """Why there is no lease right now, or that pfod does not read this rank's events; else
        None, also once closed."""
        problem = super().problem
        holder = self._holder_in_this_process(problem)
        if problem is None or holder is None and not self._waits_for_closed_one():
            return problem
        # The daemon would have it wait for the end of this process.
        if holder is None:
            remedy = "this process has closed that session, and gets the GPU as soon as pfod notices"
        else:
            remedy = (
                f"this process holds it with its session of rank {holder.rank} of {holder.job}: close that session,"
                " or give this one another gpu"
            )
        return _native.Problem(problem.code, problem.message, remedy)

    def _holder_in_this_process(self, problem: Optional[_native.Problem]) -> Optional[Session]:
        if problem is None or problem.code != _GPU_HELD:
            return None
        others = [other for other in _open_sessions() if other is not self and other.gpu is not None]
        return next((other for other in others if other._lease_in_words() in problem.message), None)

    def _waits_for_closed_one(self) -> bool:
        # The daemon learns of its end a little later than this process.
        problem = super().problem
        if problem is None or problem.code != _GPU_HELD or self._holder_in_this_process(problem) is not None:
            return False
        return _is_own(problem) and any(lease in problem.message for lease in list(_held))

    def in_words(self) -> str:
        """Rank and job, such as ``rank 3 of job llama-7b``."""
        return f"rank {self.rank} of job {self.job}"

    @property
    def is_quiet(self) -> bool:
        """Whether something runs that is not to be reported, such as an evaluation."""
        return self._quiet > 0

    def _lease_in_words(self) -> str:
        return f"GPU {self.gpu} is held by job {self.job}, rank {self.rank} "

    def step(self) -> Span:
        """Reports a step: ``with session.step(): …``, or a decorator of the function that runs
        one."""
        return Span(self.step_begin, self.step_end)

    def instruction(self, name: Name, microbatch: Optional[int] = None, chunk: int = 0) -> Span:
        """Reports an instruction: ``with session.instruction("forward", microbatch=m): …``, or a
        decorator.

        The arguments are those of :meth:`instruction_begin`.
        """
        return Span(partial(self.instruction_begin, name, microbatch, chunk), self.instruction_end)

    def __repr__(self) -> str:
        if self.closed:
            return f"<pfo_gpu.Session of rank {self.rank} of {self.job}, closed>"
        problem = self.problem
        state = ", ".join(str(what) for what in (self.gpu or "without a lease", problem) if what is not None)
        return f"<pfo_gpu.Session of rank {self.rank} of {self.job}, {state}, timing: {self.timing}>"

    def _repr_html_(self) -> str:
        from pfo_gpu.html import table

        closed, problem, counters = self.closed, self.problem, self.counters
        rows = [
            ("job", self.job),
            ("rank", self.rank),
            ("GPU", self.gpu),
            ("connected", "closed" if closed else "yes" if counters.connected else "no"),
            ("timing", None if closed else self.timing),
            ("sent", counters.sent),
            ("dropped", counters.dropped),
            ("untimed", counters.untimed),
            ("captured", counters.captured),
            ("misplaced", counters.misplaced),
            ("reconnects", counters.reconnects),
            ("problem", problem),
        ]
        return table("session", rows)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        # A spawned worker and a checkpoint get a session that has ended.
        return type(self).__new__, (type(self),)


def _is_own(problem: _native.Problem) -> bool:
    """Whether it is this process that holds the GPU."""
    # Its number outside of a container is another one, and known to pfod alone.
    return problem.remedy == _OWN_REMEDY or f"process {os.getpid()})" in problem.message


def _open_sessions() -> list[Session]:
    # Another thread may open one meanwhile, which no iteration bears.
    sessions = [session() for session in _sessions.valuerefs()]
    return [session for session in sessions if session is not None and not session.closed]


@atexit.register
def _end_sessions() -> None:
    # CUDA must still be loaded: nothing may wait for a GPU whose driver library is being torn down.
    _native.wait_for_gpu(_LAST_PATIENCE_S)
    for session in _open_sessions():
        session.close()


def _own_rank() -> int:
    distributed = initialized_distributed()
    if distributed is not None:
        return int(distributed.get_rank())
    return _native.launched_rank() or 0


def _ask(stream: Callable[[], int], _ordinal: Optional[int]) -> int:
    return stream()
