"""The names of instructions: those of profiles and plans."""

from __future__ import annotations

import logging

NAMES = (
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
)

_reported: set[str] = set()


def report_unknown(name: str) -> None:
    """Logs, once for each name, that an instruction is sent as ``other``."""
    if name not in _reported:
        _reported.add(name)
        logging.getLogger("pfo").warning(
            "%r is no instruction and is sent as 'other'; the names are %s", name, ", ".join(NAMES)
        )
