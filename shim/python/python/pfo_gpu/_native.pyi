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
    "launched_rank",
    "payload_bytes",
    "request_frame",
    "wait_for_gpu",
]

__version__: Final[str]

def launched_rank() -> Optional[int]:
    """The global rank that a launcher gave this process; None if no launcher started it."""

def wait_for_gpu(patience_s: float) -> None:
    """Waits until the GPU has got to every call of every session, but not longer than this."""

class NodeError(RuntimeError):
    """A daemon of the node that does not answer, or what it refuses; the message says what to do about it."""

def request_frame(request: str) -> bytes:
    """The frame of a request to ``pfod``, which is JSON."""

def agent_request_frame(request: str) -> bytes:
    """The frame of a request to ``pfo-agent``, which is JSON."""

def payload_bytes(header: bytes) -> int:
    """The number of bytes that follow a header."""

def answer(frame: bytes) -> str:
    """The answer in a frame, as JSON. A refusal is an error."""

@final
class Problem:
    """Why there is no lease right now."""

    def __new__(cls, code: int, message: str, remedy: str) -> Problem: ...
    @property
    def code(self) -> int:
        """The code of ``enum pfo_code`` in ``pfo.h``."""
    @property
    def message(self) -> str:
        """What is wrong."""
    @property
    def remedy(self) -> str:
        """What to do about it; empty where nothing can be said."""

@final
class Counters:
    """What became of a session's events."""

    @property
    def sent(self) -> int:
        """Events that the kernel took."""
    @property
    def dropped(self) -> int:
        """Events that were dropped: there was no connection, or its socket was full."""
    @property
    def untimed(self) -> int:
        """Calls that counted when they were made, though the session waits for its GPU: there was no CUDA
        context on it, or the stream was another GPU's."""
    @property
    def captured(self) -> int:
        """Calls that counted for nothing: a CUDA graph was being captured."""
    @property
    def misplaced(self) -> int:
        """Instructions that began outside a step, or before the one before them had ended."""
    @property
    def reconnects(self) -> int:
        """How often a lost lease was had again."""
    @property
    def connected(self) -> bool:
        """Whether the session holds a lease now, as far as it knows."""

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
        """The next training step begins."""
    def step_end(self, *, at_ns: Optional[int] = None) -> None:
        """The step ends."""
    def instruction_begin(
        self, name: Name, microbatch: Optional[int] = None, chunk: int = 0, *, at_ns: Optional[int] = None
    ) -> None:
        """An instruction of a microbatch begins.

        Without a number it is the microbatch after the last one of the same instruction and chunk in
        this step. With ``at_ns`` (``time.monotonic_ns()``), this call and the three others count from that
        time on.
        """
    def instruction_end(self, *, at_ns: Optional[int] = None) -> None:
        """The instruction that began last ends."""
    @property
    def problem(self) -> Optional[Problem]:
        """Why there is no lease right now; None if there is one, or if the session is over."""
    @property
    def plan_problem(self) -> Optional[Problem]:
        """Why the job does not begin with the plan that was named; None if it does, or if none was."""
    @property
    def gpu(self) -> Optional[str]:
        """The UUID of the leased GPU; None if there is no lease right now."""
    @property
    def counters(self) -> Counters:
        """What became of the events so far."""
    @property
    def timing(self) -> str:
        """When a call that is made now counts, and why: ``stream on cuda:3``, ``cpu: there is no lease``."""
    @property
    def closed(self) -> bool:
        """Whether the session is over."""
    def close(self) -> None:
        """Ends the session, without waiting: the daemon restores the GPU's clocks.

        Calls that the GPU has not reached yet are reported first.
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
    """A profile, a plan, a frontier or a deadline that the planner refuses."""

@final
class Bound:
    """The energy that every plan of a pipeline takes at least."""

    def energy_j(self, time_s: Union[str, float]) -> float:
        """The joules of a step of this iteration time, waiting included, that every plan takes at
        least. The time is in seconds, or as :meth:`Frontier.at` takes it.

        Raises:
            PlanError: No plan takes as little time, or it is no time."""
    def __call__(self, time_s: Union[str, float]) -> float:
        """The same."""
    @property
    def fastest_s(self) -> float:
        """The shortest possible iteration time."""
    @property
    def cheapest_s(self) -> float:
        """The iteration time of least energy."""
    @property
    def slowest_s(self) -> float:
        """The iteration time beyond which more time saves nothing, even where the pipeline waits
        anyway."""

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
