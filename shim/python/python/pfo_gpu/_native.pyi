import os
from typing import Any, Callable, Final, Mapping, Optional, Sequence, Union, final

from pfo_gpu.instruction import Name

from typing_extensions import Self, disjoint_base

__all__ = [
    "Bound",
    "Counters",
    "Frontier",
    "InstructionCall",
    "Pipeline",
    "Plan",
    "NodeError",
    "PlanError",
    "Problem",
    "Profile",
    "Reported",
    "Reporter",
    "Session",
    "__version__",
    "agent_request_frame",
    "answer",
    "cuda_gpus",
    "launched_rank",
    "payload_bytes",
    "request_frame",
    "wait_for_gpu",
]

__version__: Final[str]

def cuda_gpus(driver_gpus: list[tuple[str, str, str]]) -> list[str]:
    """The UUIDs of this process's GPUs in the order in which CUDA counts them, given the UUID, PCI
    bus id and model of each GPU that the driver shows it. Raises ``ValueError`` if CUDA may count
    them in another order."""

def launched_rank() -> Optional[int]:
    """The global rank that a launcher (``torchrun``, Open MPI, PMI, Slurm) gave this process; None
    without one."""

def wait_for_gpu(patience_s: float) -> None:
    """Waits, for at most ``patience_s`` seconds, until the GPU has reached every call of every
    session of this process."""

class NodeError(RuntimeError):
    """A daemon of the node does not answer, or a request is invalid or refused. The message gives
    the remedy."""

def request_frame(request: str) -> bytes:
    """Encodes a JSON request to ``pfod`` as a frame. Raises :class:`NodeError` if it is invalid."""

def agent_request_frame(request: str) -> bytes:
    """Encodes a JSON request to ``pfo-agent`` as a frame. Raises :class:`NodeError` if it is
    invalid."""

def payload_bytes(header: bytes) -> int:
    """The number of bytes that follow a header. Raises :class:`NodeError` if the header is
    invalid."""

def answer(frame: bytes) -> str:
    """Decodes the answer in a frame to JSON. Raises :class:`NodeError` if it is a refusal, or
    invalid."""

@final
class Problem:
    """Why training runs at default clocks, or without its plan."""

    def __new__(cls, code: int, message: str, remedy: str) -> Problem: ...
    def __getnewargs__(self) -> tuple[int, str, str]: ...
    @property
    def code(self) -> int:
        """The code of ``enum pfo_code`` in ``pfo.h``."""
    @property
    def message(self) -> str:
        """What is wrong."""
    @property
    def remedy(self) -> str:
        """What to do about it; empty if no remedy is known."""

@final
class Counters:
    """How many events of a session were sent, dropped or not timed."""

    @property
    def sent(self) -> int:
        """Events that were written to the socket."""
    @property
    def dropped(self) -> int:
        """Events that were dropped, because there was no connection or its socket was full."""
    @property
    def untimed(self) -> int:
        """Calls that counted at once, although the session times them on its GPU: the process had
        no CUDA context there, or the stream was another GPU's. With ``sync="stream"``, only calls
        made after the process had loaded CUDA; with ``sync="cpu"``, always 0."""
    @property
    def captured(self) -> int:
        """Calls that were discarded, because a CUDA graph was being captured; 0 with
        ``sync="cpu"``."""
    @property
    def misplaced(self) -> int:
        """Instructions that began outside a step, or before the previous one had ended."""
    @property
    def reconnects(self) -> int:
        """How often the session regained a lost lease."""
    @property
    def connected(self) -> bool:
        """Whether the session holds a lease and pfod reads its events, as far as it knows."""

@disjoint_base
class Session:
    """A session that is over until ``_open`` opens it."""

    # Not `Session`: of that type, pyright would take what a subclass makes.
    def __new__(cls, *_arguments: object, **_named_arguments: object) -> Self: ...
    def _open(
        self,
        *,
        job: Optional[str],
        gpu: Optional[str],
        socket: Union[str, os.PathLike[str], None],
        rank: int,
        pp_rank: int,
        dp_rank: int,
        tp_rank: int,
        pp_degree: int,
        dp_degree: int,
        tp_degree: int,
        num_microbatches: Optional[int],
        first_step: int,
        setup_timeout_s: float,
        plan: Union[str, os.PathLike[str], None],
        sync: str,
        cuda: Callable[..., object],
    ) -> None: ...
    def _is_settled(self) -> bool:
        """Whether the daemon has answered, or there is a reason why it has not."""
    def step_begin(self, *, at_ns: Optional[int] = None) -> None:
        """Begins the next training step. Steps count up by one from ``first_step``. ``at_ns`` is as
        for :meth:`instruction_begin`."""
    def step_end(self, *, at_ns: Optional[int] = None) -> None:
        """Ends the step. Does nothing if none has begun. ``at_ns`` is as for
        :meth:`instruction_begin`."""
    def instruction_begin(
        self, name: Name, microbatch: Optional[int] = None, chunk: int = 0, *, at_ns: Optional[int] = None
    ) -> None:
        """Begins an instruction of a microbatch.

        Microbatches count from 0 in each step. Without a number, it is the microbatch after the
        last one of the same instruction and chunk in this step; in chunks from 64 on, it is 0.

        ``at_ns`` is for a trainer that learns from its GPU when the instruction began: nanoseconds
        of ``time.monotonic_ns()``. The instruction is measured by this time, but its clock is set
        when the call is made. Without ``at_ns``, the call counts as ``sync`` says.

        Invalid arguments raise nothing: the instruction is sent as ``other``, and one warning names
        them.
        """
    def instruction_end(self, *, at_ns: Optional[int] = None) -> None:
        """Ends the instruction that began last. Does nothing if none has begun. ``at_ns`` is as for
        :meth:`instruction_begin`."""
    @property
    def problem(self) -> Optional[Problem]:
        """Why there is no lease right now, or that pfod does not read this rank's events; else
        None, also once closed."""
    @property
    def plan_problem(self) -> Optional[Problem]:
        """Why the job does not begin with the plan that ``plan`` or ``PFO_PLAN`` names; None if it
        does, if none is named, or once closed."""
    @property
    def gpu(self) -> Optional[str]:
        """The UUID of the leased GPU; None if there is no lease right now."""
    @property
    def counters(self) -> Counters:
        """The counters of the session so far, or until it was closed."""
    @property
    def timing(self) -> str:
        """When a call that is made now counts, and why: ``stream on cuda:3``, ``cpu: there is no
        lease``, ``closed``."""
    @property
    def closed(self) -> bool:
        """Whether the session has been closed."""
    def close(self) -> None:
        """Ends the session without waiting. pfod restores the GPU's clocks.

        With ``sync="stream"``, calls that the GPU has not reached yet are reported first, in the
        background.
        """

@disjoint_base
class Reporter:
    """Reports to a session what runs in a step, and counts it."""

    def __new__(cls, *_arguments: object, **_named_arguments: object) -> Self: ...
    session: Session
    @property
    def in_step(self) -> bool: ...
    @property
    def in_instruction(self) -> bool: ...
    silent: bool
    def _step_begin(self) -> None: ...
    def _step_end(self) -> None: ...
    def counts(self) -> list[tuple[str, int]]: ...
    def begin(self, name: object, microbatch: object = None, chunk: object = 0) -> None: ...
    def end(self) -> None: ...

@final
class InstructionCall:
    """Runs a function as an instruction."""

    def __new__(
        cls,
        reporter: Reporter,
        run: Callable[..., Any],
        name: str,
        chunk: int,
        *,
        has_microbatch: bool = False,
        partial_name: Optional[str] = None,
    ) -> InstructionCall: ...
    def __call__(self, *arguments: Any, **named: Any) -> Any: ...

@disjoint_base
class Reported:
    """Calls what reports a function, in the function's place."""

    tells: Any
    def __new__(cls, _run: object, _reporter: object, tells: object) -> Self: ...
    def __call__(self, *arguments: Any, **named: Any) -> Any: ...

class PlanError(ValueError):
    """The planner refuses a profile, plan, frontier, deadline or other argument; the message names
    it."""

@final
class Bound:
    """The least energy of a step that any plan of a pipeline can reach, by iteration time."""

    def energy_j(self, time_s: Union[str, float]) -> float:
        """The least energy of a step of this iteration time, in joules, waiting included.

        ``time_s`` is a number of seconds, or text as :meth:`Frontier.at` takes it. A time that is
        shorter than :attr:`fastest_s` or invalid raises :class:`PlanError`."""
    def __call__(self, time_s: Union[str, float]) -> float:
        """As :meth:`energy_j`."""
    @property
    def fastest_s(self) -> float:
        """The shortest possible iteration time, in seconds."""
    @property
    def cheapest_s(self) -> float:
        """The iteration time of least energy, in seconds."""
    @property
    def slowest_s(self) -> float:
        """The iteration time, in seconds, beyond which more time saves nothing, even if the
        pipeline waits for a straggler anyway."""

@final
class Profile:
    def __new__(cls, csv: bytes, *, combine: str, noise: str) -> Profile: ...
    @property
    def num_stages(self) -> int: ...
    @property
    def warnings(self) -> list[str]: ...
    def to_csv(self) -> str: ...

@final
class Pipeline:
    def __new__(
        cls,
        profile: Profile,
        *,
        microbatches: Optional[int],
        schedule: Optional[str],
        order: Optional[bytes],
        chunks: int,
        microbatch_group: Optional[int],
        extra_warm_up: bool,
        memory_limit: Sequence[int],
        fixed: Sequence[str],
        transfer_ms: float,
        switch_latency_ms: float,
        set_call_ms: float,
        held_up_ms: float,
    ) -> Pipeline: ...

@final
class Plan:
    @staticmethod
    def from_bytes(plan: bytes, profile: Optional[Profile], schedule: str) -> Plan: ...
    def to_text(self, format: str) -> str: ...
    def with_payloads(self, payloads: bytes) -> Plan: ...
    def payloads(self) -> list[tuple[int, str, int, int, str]]: ...
    def replay(self, profile: Profile, p2p_power: Union[float, Sequence[float], None]) -> tuple[float, float]: ...
    def clock_table(self) -> str: ...
    @property
    def predicted(self) -> Optional[tuple[float, float]]: ...
    @property
    def gpu(self) -> Optional[str]: ...
    @property
    def schedule(self) -> str: ...
    @property
    def num_stages(self) -> int: ...
    @property
    def num_microbatches(self) -> int: ...
    def instructions(self) -> list[tuple[int, str, int, int, int]]: ...

@final
class Frontier:
    @staticmethod
    def optimize(
        pipeline: Pipeline,
        *,
        p2p_power: Union[float, Sequence[float], Mapping[int, float], Sequence[Mapping[int, float]]],
        site_power: float,
        plans: int,
        clock_per: str,
        gpu: Optional[str],
        progress: Optional[Callable[[float], object]],
    ) -> Frontier: ...
    @staticmethod
    def about(
        pipeline: Pipeline,
        *,
        deadline: str,
        p2p_power: Union[float, Sequence[float], Mapping[int, float], Sequence[Mapping[int, float]]],
        site_power: float,
        clock_per: str,
        gpu: Optional[str],
    ) -> Frontier: ...
    @staticmethod
    def of_plans(
        profile: Profile,
        plans: Sequence[Plan],
        *,
        p2p_power: Union[float, Sequence[float]],
        gpu: Optional[str],
    ) -> Frontier: ...
    @staticmethod
    def from_bytes(frontier: bytes) -> Frontier: ...
    def to_bytes(self) -> bytes: ...
    def points(self) -> list[tuple[float, float]]: ...
    def plans(self) -> list[tuple[float, float]]: ...
    def plan(self, place: int) -> Plan: ...
    def seconds(self, deadline: str) -> float: ...
    def plan_for(self, deadline: str) -> Plan: ...
    def plan_with_confidence(self, deadline: str, confidence: str) -> Plan: ...
    def polished(self, deadline: str, polish_s: float) -> Plan: ...
    def plans_of(self, policy: str) -> list[Plan]: ...
    def energy_until_j(self, plan: Plan, until_s: float) -> float: ...
    def interval(self, plan: Plan, measured_step_s: Optional[float]) -> tuple[list[float], list[float]]: ...
    def bound(self) -> Bound: ...
    @property
    def gpu(self) -> Optional[str]: ...
    @property
    def p2p_power_w(self) -> float: ...
    @property
    def p2p_power_by_stage_w(self) -> list[float]: ...
    @property
    def site_power_w(self) -> float: ...
    @property
    def schedule(self) -> str: ...
    @property
    def num_stages(self) -> int: ...
    @property
    def num_microbatches(self) -> int: ...
    def __len__(self) -> int: ...
