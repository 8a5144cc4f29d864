import os
from typing import Callable, Final, Optional, Union, final

from typing_extensions import disjoint_base

__all__ = ["Counters", "Problem", "Session", "__version__"]

__version__: Final[str]

@final
class Problem:
    """Why there is no lease right now."""

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
    def reconnects(self) -> int:
        """How often a lost lease was had again."""
    @property
    def connected(self) -> bool:
        """Whether the session holds a lease now, as far as it knows."""

@disjoint_base
class Session:
    """A session that is over until ``_open`` opens it."""

    def __new__(cls, *_arguments: object, **_named_arguments: object) -> Session: ...
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
        sync: str,
        cuda: Optional[Callable[[], object]],
    ) -> None: ...
    def _wait(self, patience_s: float) -> None:
        """Waits until the GPU has reached every call, but not longer than this."""
    def step_begin(self) -> None:
        """The next training step begins."""
    def step_end(self) -> None:
        """The step ends."""
    def instruction_begin(
        self, name: str, microbatch: Optional[int] = None, chunk: int = 0
    ) -> None:
        """An instruction of a microbatch begins.

        Without a number it is the microbatch after the last one of the same instruction and chunk in
        this step.
        """
    def instruction_end(self) -> None:
        """The instruction that began last ends."""
    @property
    def problem(self) -> Optional[Problem]:
        """Why there is no lease right now; None if there is one, or if the session is over."""
    @property
    def gpu(self) -> Optional[str]:
        """The UUID of the leased GPU; None if there is no lease right now."""
    @property
    def counters(self) -> Counters:
        """What became of the events so far."""
    def close(self) -> None:
        """Ends the session, without waiting: the daemon restores the GPU's clocks.

        Calls that the GPU has not reached yet are reported first.
        """
