"""Time and energy of any block of a program, without a lease, a pipeline or a daemon."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import inspect
import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Optional, TypeVar, Union

from pfo_gpu import cuda
from pfo_gpu.nvml import NvmlError, all_visible, nvml, visible
from pfo_gpu.once import Once
from pfo_gpu.span import returns_before_its_work

_Run = TypeVar("_Run", bound=Callable[..., Any])
_Gpu = Union[int, str]

# Millijoules of each GPU, or why they are not known.
_Reading = Union[list[int], str]

# A driver that is busy refuses a reading now and then.
_TRIES = 3
_TRY_AGAIN_AFTER_S = 0.001

_reported = Once()

# Of all windows: none is held by a thread that a fork leaves behind.
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class Window:
    """Measures time and energy of a ``with`` block, or of each call of a decorated function.

    ::

        with pfo_gpu.window("epoch") as epoch:
            train()
        print(epoch.time_s, epoch.energy_j)

    ``async with`` and coroutine functions work, too. Windows may be nested and run in several
    threads. A window that is entered more than once adds up, and what overlaps counts each time;
    :attr:`count` says how often it has ended. :meth:`begin` and :meth:`end` may be called in
    different threads, tasks or cells of a notebook. The energy is that of the whole GPUs in the
    meantime, including what other processes used.

    Attributes:
        name: Its name.
    """

    def __init__(self, name: str = "window", *, gpus: Optional[Iterable[_Gpu]] = None, sync: bool = True) -> None:
        self.name = name
        self._sync = sync
        self._gpus = _Counters(None if gpus is None else _named(gpus))
        self._begun: list[_Begun] = []
        self._problem: Optional[str] = None
        self._time_ns = 0
        self._energy_mj = [0] * len(self._gpus.uuids)
        self.count = 0
        """How often it has ended."""

    @property
    def time_s(self) -> float:
        """Seconds between begin and end, summed over all that have ended."""
        return self._time_ns / 1e9

    @property
    def energy_by_gpu_j(self) -> dict[str, float]:
        """Joules of each GPU in these times, by its UUID; not valid if :attr:`problem` has a
        reason."""
        return {uuid: energy / 1e3 for uuid, energy in zip(self._gpus.uuids, self._energy_mj)}

    @property
    def energy_j(self) -> Optional[float]:
        """Joules of all of the GPUs together; None if the energy is not known, for the reason in
        :attr:`problem`."""
        return None if self.problem else sum(self._energy_mj) / 1e3

    @property
    def power_w(self) -> Optional[float]:
        """Mean power of all of the GPUs together, in watts; None if it is not known or nothing has
        ended."""
        return None if self.energy_j is None or not self._time_ns else self.energy_j / self.time_s

    @property
    def problem(self) -> Optional[str]:
        """Why the energy is not known; None if it is. One reading that failed is enough: the sum
        would lack a part. Another window is not affected."""
        return self._gpus.problem or self._problem

    def begin(self) -> None:
        """Begins, as entering the window does. With ``sync``, it waits for the GPU first."""
        if self._sync:
            _wait_for_gpus()
        began = _Begun(_here(), time.perf_counter_ns(), self._gpus.read())
        with _lock:
            self._begun.append(began)

    def end(self) -> None:
        """Ends, as leaving the window does: what this thread or task began last, else what any
        other one did. Without a begin, it measures nothing, and one warning says so."""
        if self._sync:
            _wait_for_gpus()
        reading, now_ns, here = self._gpus.read(), time.perf_counter_ns(), _here()
        with _lock:
            own = (index for index in reversed(range(len(self._begun))) if self._begun[index].by is here)
            place = next(own, len(self._begun) - 1)
            begun = self._begun.pop(place) if place >= 0 else None
            if begun is not None:
                self._time_ns += now_ns - begun.at_ns
                used_mj, problem = self._gpus.used(begun.reading, reading)
                self._energy_mj = [total + more for total, more in zip(self._energy_mj, used_mj)]
                self._problem = self._problem or problem
                self.count += 1
        if begun is None and _reported.is_first(f"end {self.name}"):
            logging.getLogger("pfo_gpu").warning(
                "window %r was ended without having begun, which measures nothing; call begin() first", self.name
            )

    def __enter__(self) -> Window:
        self.begin()
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    async def __aenter__(self) -> Window:
        return self.__enter__()

    async def __aexit__(self, *exception: object) -> None:
        self.end()

    def __call__(self, function: _Run) -> _Run:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def measured_later(*arguments: Any, **named: Any) -> Any:
                with self:
                    return await function(*arguments, **named)

            return measured_later  # type: ignore[return-value]

        if returns_before_its_work(function):
            raise TypeError(
                f"{getattr(function, '__qualname__', repr(function))} is a generator function: its call returns before"
                " its work begins; use `with` inside it"
            )

        @functools.wraps(function)
        def measured(*arguments: Any, **named: Any) -> Any:
            with self:
                return function(*arguments, **named)

        return measured  # type: ignore[return-value]

    def __repr__(self) -> str:
        energy = f"energy unknown: {self.problem}" if self.energy_j is None else f"{self.energy_j:.6g} J"
        return f"<pfo_gpu.Window {self.name!r}: {self.time_s:.6g} s, {energy}, {self.count} times>"


def window(name: str = "window", *, gpus: Optional[Iterable[_Gpu]] = None, sync: bool = True) -> Window:
    """Measures a block or a function: its time, and the energy of this process's GPUs in the
    meantime.

    It reads the driver's energy counters, which every user may do, and changes nothing. If a
    counter cannot be read, the window still measures time, one warning gives the reason, and so
    does :attr:`Window.problem`. The driver refreshes the counters about ten times a second: the
    energy of a window shorter than a second is inexact.

    Args:
        name: Its name.
        gpus: UUIDs, PCI bus ids, or CUDA ordinals of this process, as those of
            :class:`pfo_gpu.Session`; a GPU that is named twice counts once. Defaults to the GPUs
            that this process leases, else to ``PFO_GPU``, else to PyTorch's current device if
            ``LOCAL_RANK`` is set and PyTorch has initialized CUDA, else to all that CUDA shows.
        sync: Whether begin and end wait until PyTorch's current GPU has finished its work, as Zeus'
            do.

    Raises:
        TypeError: ``gpus`` is no list of indices and texts, or a decorated function is a generator.
        ValueError: ``gpus`` is empty.
    """
    return Window(name, gpus=gpus, sync=sync)


def _named(gpus: Iterable[_Gpu]) -> list[_Gpu]:
    """Returns the GPUs that a caller names. Raises TypeError or ValueError if they name none."""
    wanted = "expected a list of UUIDs, PCI bus ids or places among the GPUs that CUDA shows this process"
    if isinstance(gpus, (str, bytes, int)):
        raise TypeError(f"gpus: {wanted}, not {gpus!r}; write [{gpus!r}] for one of them")
    named = list(gpus)
    if not named:
        raise ValueError(f"gpus: {wanted}, not an empty one; without gpus, the window counts those of this process")
    wrong = [gpu for gpu in named if isinstance(gpu, bool) or not isinstance(gpu, (int, str))]
    if wrong:
        raise TypeError(f"gpus: {wanted}, not one with {wrong[0]!r}")
    return named


@dataclass(frozen=True)
class Measurement:
    """What a window of :class:`Monitor` measured, as that of ``zeus.monitor``."""

    time: float
    """Seconds."""
    gpu_energy: dict[int, float]
    """Joules of each GPU, by its CUDA ordinal."""
    cpu_energy: None = None
    """Not measured."""
    dram_energy: None = None
    """Not measured."""

    @property
    def total_energy(self) -> float:
        """Joules of all GPUs."""
        return sum(self.gpu_energy.values())


class Monitor:
    """Replaces ``zeus.monitor.ZeusMonitor`` for windows: the same calls, and the same figures.

    Args:
        gpu_indices: CUDA ordinals of this process; defaults to all of them.
        cpu_indices: Ignored.
        approx_instant_energy: Ignored: a counter that has not moved yet gives 0 J.
        log_file: Ignored.
        sync_execution_with: Ignored: windows wait for PyTorch's current GPU, and without PyTorch
            for nothing.

    Raises:
        NvmlError: The energy of a GPU cannot be read.
        ValueError: There is no GPU of one of the indices.
    """

    def __init__(
        self,
        gpu_indices: Optional[list[int]] = None,
        cpu_indices: Optional[list[int]] = None,
        approx_instant_energy: bool = False,
        log_file: object = None,
        sync_execution_with: str = "torch",
    ) -> None:
        gpus = visible()
        self.gpu_indices = list(range(len(gpus))) if gpu_indices is None else list(gpu_indices)
        wrong = [index for index in self.gpu_indices if not 0 <= index < len(gpus)]
        if wrong:
            raise ValueError(f"gpu_indices has {wrong[0]}; CUDA shows this process {len(gpus)} GPUs, counted from 0")
        self._uuids = [nvml().uuid(gpus[index]) for index in self.gpu_indices]
        self._counters = _Counters(self._uuids)
        if self._counters.problem:
            raise NvmlError(self._counters.problem)
        self._begun: dict[str, tuple[int, _Reading]] = {}

    def begin_window(self, key: str, sync_execution: bool = True) -> None:
        """Begins a window. With ``sync_execution``, it waits for the GPU first.

        Raises:
            ValueError: A window of this name is open.
        """
        if key in self._begun:
            raise ValueError(f"measurement window {key!r} is open already")
        if sync_execution:
            _wait_for_gpus()
        self._begun[key] = (time.perf_counter_ns(), self._counters.read())

    def end_window(self, key: str, sync_execution: bool = True, cancel: bool = False) -> Measurement:
        """Ends a window, in any thread, and returns what it measured; zeros if it is cancelled.

        With ``sync_execution``, it waits for the GPU first. If a counter could not be read, or fell,
        ``gpu_energy`` is empty, and one warning gives the reason; the next window is not affected.

        Raises:
            ValueError: No window of this name is open.
        """
        if sync_execution and not cancel:
            _wait_for_gpus()
        reading, now_ns = self._counters.read(), time.perf_counter_ns()
        begun = self._begun.pop(key, None)
        if begun is None:
            raise ValueError(f"measurement window {key!r} is not open")
        if cancel:
            return Measurement(0.0, dict.fromkeys(self.gpu_indices, 0.0))
        began_ns, before = begun
        used_mj, _ = self._counters.used(before, reading)
        by_uuid = dict(zip(self._counters.uuids, used_mj))
        measured = {index: uuid for index, uuid in zip(self.gpu_indices, self._uuids) if uuid in by_uuid}
        energy_j = {index: by_uuid[uuid] / 1e3 for index, uuid in measured.items()}
        return Measurement((now_ns - began_ns) / 1e9, energy_j)


@dataclass(frozen=True)
class _Begun:
    """A window that has begun and not ended."""

    by: object
    at_ns: int
    reading: _Reading


class _Counters:
    """The energy counters of some GPUs, as far as they can be read."""

    def __init__(self, gpus: Optional[Iterable[_Gpu]]) -> None:
        self.problem: Optional[str] = None
        """Why none of them can ever be read."""
        self._handles: list[ctypes.c_void_p] = []
        self.uuids: list[str] = []
        try:
            library = nvml()
            handles = _chosen() if gpus is None else [_handle(gpu) for gpu in gpus]
            named = {library.uuid(handle): handle for handle in handles}
            self.uuids, self._handles = list(named), list(named.values())
            self._read_mj = library.energy_mj
            self.problem = None if handles else "CUDA_VISIBLE_DEVICES shows this process no GPU"
            first = self.read()
            self.problem = self.problem or (first if isinstance(first, str) else None)
        except NvmlError as error:
            self.problem = str(error)
        if self.problem:
            _warn(self.problem)

    def read(self) -> _Reading:
        """Millijoules of each GPU, or why one of them could not be read."""
        if self.problem:
            return self.problem
        for tries_left in reversed(range(_TRIES)):
            try:
                return [self._read_mj(handle) for handle in self._handles]
            except NvmlError as error:
                problem = str(error)
                if tries_left:
                    time.sleep(_TRY_AGAIN_AFTER_S)
        return problem

    def used(self, before: _Reading, now: _Reading) -> tuple[list[int], Optional[str]]:
        """Millijoules of each GPU between two readings; none, and the reason, if they are not
        known."""
        if isinstance(before, str):
            return [], _warn(before)
        if isinstance(now, str):
            return [], _warn(now)
        fell = next((uuid for uuid, mj, was_mj in zip(self.uuids, now, before) if mj < was_mj), None)
        if fell is not None:
            return [], _warn(f"the energy counter of {fell} fell; was the driver loaded anew?")
        return [mj - was_mj for mj, was_mj in zip(now, before)], None


def _warn(problem: str) -> str:
    if _reported.is_first(problem):
        logging.getLogger("pfo_gpu").warning("windows measure time, and no energy: %s", problem)
    return problem


def _handle(gpu: _Gpu) -> ctypes.c_void_p:
    if isinstance(gpu, str):
        return nvml().by_name(gpu)
    gpus = visible()
    if not 0 <= gpu < len(gpus):
        raise NvmlError(f"gpus has {gpu}; CUDA shows this process {len(gpus)} GPUs, counted from 0")
    return gpus[gpu]


def _chosen() -> list[ctypes.c_void_p]:
    """The GPUs that a window of this process measures by default."""
    from pfo_gpu.session import _open_sessions

    leased = {session.gpu for session in _open_sessions()} - {None}
    if leased:
        return [nvml().by_name(str(uuid)) for uuid in sorted(map(str, leased))]
    named = os.environ.get("PFO_GPU", "")
    if named:
        ordinal = named[len("cuda:") :] if named.startswith("cuda:") else named
        return [_handle(int(ordinal) if ordinal.isdigit() else named)]
    torch = cuda.pytorch()
    if "LOCAL_RANK" in os.environ and torch is not None and torch.cuda.is_initialized():
        gpus, current = visible(), int(torch.cuda.current_device())
        return gpus[current : current + 1] or gpus
    return all_visible()


def _wait_for_gpus() -> None:
    try:
        torch = cuda.pytorch()
        if torch is not None and torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
    except Exception:
        # What is wrong with CUDA, the program's own next call says.
        pass


def _here() -> object:
    """The thread, or the task of it, that enters and leaves a window."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.current_thread() if task is None else task
