"""DeepSpeed's pipeline engine."""

from __future__ import annotations

import functools
from typing import Any, Optional

from pfo.integrations.telling import Run, Telling
from pfo.session import Session

_NAMES = {"ForwardPass": "forward", "BackwardPass": "backward"}


def follow(engine: Any, session: Optional[Session] = None, **rank: Any) -> Session:
    """Reports every forward and backward that a ``PipelineEngine`` runs to a session.

    ``engine.train_batch`` becomes a step. Each ``ForwardPass`` and ``BackwardPass`` of its schedule becomes
    an instruction: this engine's map of instructions gets entries of its own, and the class keeps its map.
    With ``DualPipeVEngine``, which runs them one at a time, the phase is the chunk. ``engine.eval_batch``
    is not reported.

    Args:
        engine: The engine that ``deepspeed.initialize`` returned for a ``PipelineModule``.
        session: The session; if there is none, one is opened with the ranks of the engine's grid.
        rank: Further arguments of the session.

    Returns:
        The session, which lives as long as the engine.
    """
    if session is None:
        session = Session(**{**_rank(engine), **rank})
    telling = Telling(session)
    engine._INSTRUCTION_MAP = {
        instruction: _told(telling, _NAMES[instruction.__name__], run)
        if instruction.__name__ in _NAMES
        else run
        for instruction, run in engine._INSTRUCTION_MAP.items()
    }
    engine.train_batch = telling.step(engine.train_batch)
    return session


def _rank(engine: Any) -> dict[str, int]:
    grid = engine.grid
    return {
        "rank": grid.get_global_rank(),
        "pp_rank": grid.get_pipe_parallel_rank(),
        "pp_degree": grid.get_pipe_parallel_world_size(),
        "dp_rank": grid.get_data_parallel_rank(),
        "dp_degree": grid.get_data_parallel_world_size(),
        "tp_rank": grid.get_slice_parallel_rank(),
        "tp_degree": grid.get_slice_parallel_world_size(),
        "num_microbatches": engine.micro_batches,
    }


def _told(telling: Telling, name: str, run: Run) -> Run:
    # Its buffer is not the microbatch; that the session counts.
    @functools.wraps(run)
    def told(engine: Any, *arguments: Any, phase: Optional[int] = None, **named: Any) -> Any:
        if phase is not None:
            named["phase"] = phase
        telling.begin(name, chunk=phase or 0)
        try:
            return run(engine, *arguments, **named)
        finally:
            telling.end()

    return told
