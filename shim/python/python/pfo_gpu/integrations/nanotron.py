"""Nanotron's trainer and its pipeline engines."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

from pfo_gpu.instruction import Name
from pfo_gpu.integrations.accounts import Account, Expected
from pfo_gpu.integrations.reporting import (
    Run,
    Reporter,
    goes_on,
    hook,
    put,
    refuse_unknown,
    report_to,
    swap_in,
    reporter_of,
)
from pfo_gpu.session import Session


def follow(trainer: Any, session: Optional[Session] = None, **rank: Any) -> Optional[Session]:
    """Reports every forward and backward that a pipeline engine of Nanotron runs to a session.

    ``trainer.training_step`` becomes a step. A stage receives activations and gradients inside its
    forwards and backwards; an instruction begins only when they have arrived, so it does not
    contain the wait for another stage. The optimizer's step is an ``optimizer_step``. Validation is
    not reported. A second call for the same trainer changes nothing, unless it gives another
    session or the first one is closed: the trainer then reports to the new one.

    Args:
        trainer: The ``DistributedTrainer``, before ``train()``.
        session: The session; by default, one is opened with the ranks of the trainer's groups.
        rank: Further arguments of the opened session, which have precedence.

    Returns:
        The session, which lives as long as the trainer; None if the trainer cannot be followed.

    Raises:
        TypeError: ``session`` is no session, or a session has no argument of such a name.
    """
    former = reporter_of(getattr(trainer, "training_step", None))
    if former is not None and goes_on(former, session):
        return former.session
    refused = partial(refuse_unknown, type(trainer).__name__, "a DistributedTrainer of Nanotron")
    try:
        described = {**_rank(trainer), **rank} if session is None else {}
        engine, first = trainer.config.parallelism.pp_engine, _first_block(trainer.model)
        optimizer = trainer.optimizer
        is_last = _group_rank(trainer.parallel_context.pp_pg) == trainer.parallel_context.pp_pg.size() - 1
    except Exception as error:
        refused(error)
        return None

    def swap(opened: Session) -> None:
        account = Account(partial(_expected, trainer))
        pipeline = _Pipeline(Reporter("Nanotron", opened, "nanotron", account), is_last)
        reporter, block = pipeline.reporter, first.pp_block
        kept = getattr(block, "_forward_pre_hooks", {})
        unhook = hook(block.register_forward_pre_hook, kept, pipeline.computes)
        try:
            swap_in(
                [
                    *put(reporter, engine, "forward", partial(pipeline.told, "forward")),
                    *put(reporter, engine, "backward", partial(pipeline.told, "backward")),
                    *put(reporter, first.p2p, "recv_tensors", pipeline.received),
                    *put(reporter, optimizer, "step", partial(reporter.instruction, "optimizer_step")),
                    *put(reporter, trainer, "training_step", reporter.step),
                ]
            )
        except BaseException:
            unhook()
            raise

    return report_to(session, described, former, swap, refused)


def _rank(trainer: Any) -> dict[str, Any]:
    import torch

    groups = trainer.parallel_context
    return {
        "rank": torch.distributed.get_rank(),
        "pp_rank": _group_rank(groups.pp_pg),
        "pp_degree": groups.pp_pg.size(),
        "dp_rank": _group_rank(groups.dp_pg),
        "dp_degree": groups.dp_pg.size(),
        "tp_rank": _group_rank(groups.tp_pg),
        "tp_degree": groups.tp_pg.size(),
        "num_microbatches": trainer.n_micro_batches_per_batch,
        "first_step": trainer.start_iteration_step,
    }


def _expected(trainer: Any) -> Expected:
    each = int(trainer.n_micro_batches_per_batch)
    return Expected(each, each)


def _group_rank(group: Any) -> int:
    import torch

    return int(torch.distributed.get_rank(group))


def _first_block(model: Any) -> Any:
    """The first module among the blocks of this rank; blocks that are plain functions hardly
    compute."""
    import torch

    blocks = [module for module in model.modules() if isinstance(getattr(module, "pp_block", None), torch.nn.Module)]
    if not blocks:
        raise ValueError("it has no pipeline block on this rank")
    return blocks[0]


class _Pipeline:
    """Tracks whether a forward or backward of the engine still waits for another stage, or
    computes."""

    def __init__(self, reporter: Reporter, is_last: bool) -> None:
        self.reporter = reporter
        self._is_last = is_last
        self._waits: Optional[Name] = None

    def told(self, name: Name, run: Run) -> Run:
        def told(*arguments: Any, **named: Any) -> Any:
            self._waits = name
            if name == "backward" and self._is_last:
                self._begin()
            try:
                return run(*arguments, **named)
            finally:
                self._begin()
                self.reporter.end()

        return told

    def received(self, run: Run) -> Run:
        def received(*arguments: Any, **named: Any) -> Any:
            tensors = run(*arguments, **named)
            # Activations are several; the first block says when all are there.
            if self._waits == "backward":
                self._begin()
            return tensors

        return received

    def computes(self, _module: Any, _arguments: Any) -> None:
        if self._waits == "forward":
            self._begin()

    def _begin(self) -> None:
        if self._waits is not None:
            self.reporter.begin(self._waits)
            self._waits = None
