"""What a user of Zeus' pipeline frequency optimizer changes: the import."""

from __future__ import annotations

import logging
import os
from typing import Optional, cast

from pfo_gpu.instruction import Name
from pfo_gpu.job import agreed_name
from pfo_gpu.session import Session


class PipelineFrequencyOptimizer:
    """Replaces Zeus' class of this name: same constructor, same calls.

    There is no server: ``pfoctl plan swap`` swaps plans in. Zeus' API has no microbatch numbers, so
    they are counted for each instruction within a step.

    If neither ``PFO_JOB`` nor Slurm nor ``torchrun`` names the job, rank 0 broadcasts a name: all
    ranks then construct it at the same time, after ``init_process_group``, and wait for each other.

    Args:
        rank: The global rank.
        dp_rank: The data-parallel rank.
        pp_rank: The pipeline stage, counted from 0.
        tp_rank: The tensor-parallel rank.
        device_id: The CUDA ordinal, in this process, of the GPU that the rank drives; ignored if
            ``PFO_GPU`` names the GPU.
        dp_degree: The number of data-parallel replicas.
        pp_degree: The number of pipeline stages.
        tp_degree: The number of tensor-parallel shards.
        world_size: The number of ranks: the product of the three degrees.
        server_url: Ignored; rank 0 logs a warning.
        job_metadata: Becomes part of the job's name, unless the environment names the job.
        sync: As for :class:`pfo_gpu.Session`; Zeus does at each begin what ``"device"`` does at
            each call.

    Raises:
        ValueError: ``world_size`` is not that product, or :class:`pfo_gpu.Session` refuses an
            argument.
    """

    def __init__(
        self,
        rank: int,
        dp_rank: int,
        pp_rank: int,
        tp_rank: int,
        device_id: int,
        dp_degree: int,
        pp_degree: int,
        tp_degree: int,
        world_size: int,
        server_url: Optional[str] = None,
        job_metadata: Optional[str] = None,
        *,
        sync: str = "stream",
    ) -> None:
        if world_size != dp_degree * pp_degree * tp_degree:
            raise ValueError(
                f"world_size {world_size} is not dp_degree {dp_degree} times pp_degree {pp_degree} "
                f"times tp_degree {tp_degree}"
            )
        if server_url is not None and rank == 0:
            logging.getLogger("pfo_gpu").warning(
                "server_url %s is ignored: plans are swapped in with `pfoctl plan swap`", server_url
            )
        self.server_url = server_url
        self.rank = rank
        self.dp_rank = dp_rank
        self.pp_rank = pp_rank
        self.tp_rank = tp_rank
        self.device_id = device_id
        self.job_id = agreed_name(job_metadata)
        self.session = Session(
            job=self.job_id,
            gpu=os.environ.get("PFO_GPU") or device_id,
            rank=rank,
            dp_rank=dp_rank,
            pp_rank=pp_rank,
            tp_rank=tp_rank,
            dp_degree=dp_degree,
            pp_degree=pp_degree,
            tp_degree=tp_degree,
            sync=sync,
        )

    def on_train_begin(self) -> None:
        """Does nothing; Zeus' callbacks have it."""

    def on_train_end(self) -> None:
        """Does nothing; Zeus' callbacks have it."""

    def on_epoch_begin(self) -> None:
        """Does nothing; Zeus' callbacks have it."""

    def on_epoch_end(self) -> None:
        """Does nothing; Zeus' callbacks have it."""

    def on_evaluate(self, metric: float) -> None:
        """Does nothing; Zeus' callbacks have it."""

    def on_step_begin(self) -> None:
        """Begins the next training step."""
        self.session.step_begin()

    def on_step_end(self) -> None:
        """Ends the step."""
        self.session.step_end()

    def on_instruction_begin(self, name: str) -> None:
        """Begins an instruction of the next microbatch: ``forward``, ``backward`` or another
        :data:`~pfo_gpu.instruction.Name`."""
        self.session.instruction_begin(cast(Name, name))

    def on_instruction_end(self, name: str) -> None:
        """Ends the instruction that began last, whatever its name."""
        self.session.instruction_end()
