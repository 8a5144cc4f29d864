"""DeepSpeed's pipeline engine."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

from pfo_gpu import cuda
from pfo_gpu.instruction import Name
from pfo_gpu.integrations.accounts import Account, Expected
from pfo_gpu.integrations.reporting import (
    Run,
    Reporter,
    Reported,
    goes_on,
    plain,
    put,
    refuse_unknown,
    report_to,
    swap_in,
    reporter_of,
)
from pfo_gpu.session import Session

_NAMES: dict[str, Name] = {
    "LoadMicroBatch": "load",
    "ForwardPass": "forward",
    "BackwardPass": "backward",
    "ReduceTiedGrads": "collective",
    "ReduceGrads": "collective",
    "OptimizerStep": "optimizer_step",
}


def follow(engine: Any, session: Optional[Session] = None, **rank: Any) -> Optional[Session]:
    """Reports what a ``PipelineEngine`` runs on this rank to a session, except transfers.

    ``engine.train_batch`` becomes a step, and the instructions of its schedule become ``load``,
    ``forward``, ``backward``, and at the end ``collective`` (both reductions of gradients, one
    after the other) and ``optimizer_step``. Only this engine's map of instructions changes, not
    that of its class. For ``DualPipeVEngine``, which runs instructions one at a time, the chunk is
    the phase. ``engine.eval_batch`` is not reported. If a step does not report every forward and
    backward once, one warning names the missing ones. A second call for the same engine changes
    nothing, unless it gives another session or the first one is closed: the engine then reports to
    the new one.

    Args:
        engine: The engine that ``deepspeed.initialize`` returned for a ``PipelineModule``.
        session: The session; by default, one is opened with the ranks of the engine's grid.
        rank: Further arguments of the opened session, which have precedence.

    Returns:
        The session, which lives as long as the engine; None if the engine cannot be followed.

    Raises:
        TypeError: ``session`` is no session, or a session has no argument of such a name.
    """
    name = type(engine).__name__
    former = reporter_of(getattr(engine, "train_batch", None))
    if former is not None and goes_on(former, session):
        return former.session
    try:
        instructions = dict(engine._INSTRUCTION_MAP)
        described = {**_rank(engine), **rank} if session is None else {}
    except Exception as error:
        refuse_unknown(name, "DeepSpeed's PipelineEngine", error)
        return None

    def swap(opened: Session) -> None:
        reporter = Reporter(name, opened, "deepspeed", Account(partial(_expected, engine)))
        reporter.says_outside = True
        told = {kind: _instruction(reporter, kind.__name__, run) for kind, run in instructions.items()}
        swap_in([(engine, "_INSTRUCTION_MAP", told), *put(reporter, engine, "train_batch", reporter.step)])

    return report_to(session, described, former, swap, partial(refuse_unknown, name, "DeepSpeed's PipelineEngine"))


def _rank(engine: Any) -> dict[str, Any]:
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
        "gpu": cuda.of_framework(getattr(engine, "device", None)),
    }


def _expected(engine: Any) -> Optional[Expected]:
    microbatches = engine.micro_batches
    if not isinstance(microbatches, int):
        return None
    each = microbatches * (2 if type(engine).__name__ == "DualPipeVEngine" else 1)
    return Expected(each, each)


def _instruction(reporter: Reporter, instruction: str, run: Run) -> Run:
    if instruction not in _NAMES:
        return run
    run = plain(run)
    return Reported(run, reporter, _reporting(reporter, instruction, run))


def _reporting(reporter: Reporter, instruction: str, run: Run) -> Run:
    # Its buffer is not the microbatch; that the session counts.
    def told(engine: Any, *arguments: Any, phase: Optional[int] = None, **named: Any) -> Any:
        if phase is not None:
            named["phase"] = phase
        # The reduction of gradients of tied layers goes on as that of all others.
        if instruction != "ReduceGrads" or not reporter.in_instruction:
            reporter.begin(_NAMES[instruction], chunk=phase or 0)
        try:
            result = run(engine, *arguments, **named)
        except BaseException:
            reporter.end()
            raise
        if instruction != "ReduceTiedGrads":
            reporter.end()
        return result

    return told
