"""What a user of Zeus' pipeline frequency optimizer changes: the import."""

from __future__ import annotations

import logging
import os
from typing import Optional, cast

from pfo_gpu.instruction import Name
from pfo_gpu.job import agreed_name
from pfo_gpu.session import Session


class PipelineFrequencyOptimizer:
    """Takes the place of Zeus' class of this name: same constructor, same calls.

    There is no server any more: plans are swapped in with ``pfoctl plan swap``. Zeus' API has no
    microbatch numbers, so they are counted for each instruction within a step.

    Without ``PFO_JOB``, a Slurm or a torchrun job, all ranks construct it at the same time, after
    ``init_process_group``: rank 0 broadcasts the job's name.

    Args:
        rank: The global rank.
        dp_rank: The data-parallel rank.
        pp_rank: The pipeline stage, counted from 0.
        tp_rank: The tensor-parallel rank.
        device_id: The CUDA ordinal, in this process, of the GPU that the rank drives, unless
            ``PFO_GPU`` names that GPU.
        dp_degree: The number of data-parallel replicas.
        pp_degree: The number of pipeline stages.
        tp_degree: The number of tensor-parallel shards.
        world_size: The number of ranks.
        server_url: Ignored; rank 0 logs that.
        job_metadata: Becomes part of the job's name, unless the environment names the job.
        sync: As for :class:`pfo_gpu.Session`; ``"device"`` is what Zeus does at each begin.
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
        """Nothing: Zeus' callbacks have it."""

    def on_train_end(self) -> None:
        """Nothing: Zeus' callbacks have it."""

    def on_epoch_begin(self) -> None:
        """Nothing: Zeus' callbacks have it."""

    def on_epoch_end(self) -> None:
        """Nothing: Zeus' callbacks have it."""

    def on_evaluate(self, metric: float) -> None:
        """Nothing: Zeus' callbacks have it."""

    def on_step_begin(self) -> None:
        """The next training step begins."""
        self.session.step_begin()

    def on_step_end(self) -> None:
        """The step ends."""
        self.session.step_end()

    def on_instruction_begin(self, name: str) -> None:
        """An instruction, ``forward`` or ``backward`` or another, of the next microbatch begins."""
        self.session.instruction_begin(cast(Name, name))

    def on_instruction_end(self, name: str) -> None:
        """The instruction that began last ends."""
        self.session.instruction_end()
