"""Finds the data-parallel replica and tensor-parallel shard of a rank in PyTorch's groups and
meshes."""

from __future__ import annotations

from typing import Any

from pfo_gpu.job import initialized_distributed


def of_group(group: Any) -> dict[str, int]:
    """The replica number of the pipeline of a process group; empty if its ranks are not evenly
    spaced.

    It assumes that the ranks of every other pipeline have the same spacing.
    """
    distributed = initialized_distributed()
    if distributed is None:
        return {}
    ranks = sorted(distributed.get_process_group_ranks(group))
    replicas, rest = divmod(distributed.get_world_size(), len(ranks))
    distance = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if rest or ranks != list(range(ranks[0], ranks[0] + distance * len(ranks), distance)):
        return {}
    block, within = divmod(ranks[0], distance)
    return {"dp_rank": block // len(ranks) * distance + within, "dp_degree": replicas}


def of_mesh(mesh: Any) -> dict[str, int]:
    """The replica and shard numbers of this rank in a mesh whose dimensions have names."""
    ranks = {"dp_rank": 0, "dp_degree": 1, "tp_rank": 0, "tp_degree": 1}
    for dimension, name in enumerate(mesh.mesh_dim_names or ()):
        if name == "pp":
            continue
        kind = "tp" if name in ("tp", "tensor_parallel") else "dp"
        size = mesh.size(dimension)
        ranks[f"{kind}_rank"] = ranks[f"{kind}_rank"] * size + mesh.get_local_rank(dimension)
        ranks[f"{kind}_degree"] *= size
    return ranks
