"""The names of instructions, in profiles and plans as in calls."""

from __future__ import annotations

import logging
from typing import Literal, get_args

from pfo_gpu.once import Once

Name = Literal[
    "forward",
    "backward",
    "forward_backward",
    "recomputation",
    "backward_input",
    "backward_weight",
    "load",
    "p2p",
    "collective",
    "optimizer_step",
    "other",
]

NAMES: tuple[Name, ...] = get_args(Name)

# A trainer that makes up names must not fill its log.
_MOST_REPORTS = 20

_reported = Once()


def report_unknown(name: object, microbatch: object, chunk: object) -> None:
    """Logs, once for each name, that an instruction is sent as ``other``."""
    named = repr(name)
    if len(_reported) >= _MOST_REPORTS or not _reported.is_first(named):
        return
    logger = logging.getLogger("pfo_gpu")
    if name in NAMES:
        logger.warning(
            "instruction %s with microbatch %r and chunk %r is sent as 'other'; a microbatch is a number from"
            " 0 to 4294967295, a chunk from 0 to 65535",
            named,
            microbatch,
            chunk,
        )
    else:
        logger.warning("%s is no instruction and is sent as 'other'; the names are %s", named, ", ".join(NAMES))


def report_misplaced(wrong: str) -> None:
    """Logs that an instruction is out of place, so pfod does not know its step."""
    logging.getLogger("pfo_gpu").warning(
        "an instruction %s, so that it is neither measured nor planned; begin a step first, and end each"
        " instruction before the next one begins (reported once)",
        wrong,
    )


def report_captured() -> None:
    """Logs that calls made while a CUDA graph is captured are discarded."""
    logging.getLogger("pfo_gpu").warning(
        "a call was made while a CUDA graph is captured and counts for nothing: the work happens when the graph is"
        " launched, and a launch is not reported; call begin and end around the launch (reported once)"
    )


def report_untimed(timing: str) -> None:
    """Logs that calls count when they are made, not when the GPU reaches them."""
    logging.getLogger("pfo_gpu").warning(
        "calls count when they are made and not when the GPU gets to them (%s); counters.untimed counts them"
        " (reported once)",
        timing,
    )


def report_no_time(at_ns: object) -> None:
    """Logs, once for each type of value, that ``at_ns`` is no time."""
    if _reported.is_first(f"at_ns of type {type(at_ns).__name__}"):
        logging.getLogger("pfo_gpu").warning(
            "at_ns=%r is no time in nanoseconds, as time.monotonic_ns() returns it; the call counts at once", at_ns
        )
