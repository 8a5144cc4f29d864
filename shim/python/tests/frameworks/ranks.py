"""Four ranks in processes of their own, and what they are told to train."""

import multiprocessing
import os

from rank import serve

RANKS = 4

# Imported once, not by each rank of each training.
FRAMEWORKS = [
    "torch.distributed.pipelining",
    "deepspeed",
    "megatron.core.pipeline_parallel.schedules",
]

# Importing a framework on a busy machine takes its time; what takes longer than this hangs.
PATIENCE_S = 600


def importing_once():
    """What makes processes, forked from one that has imported all frameworks."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(FRAMEWORKS)
    return context


class Ranks:
    """Processes that stay for all trainings."""

    def __init__(self, directory, context):
        self._processes, self._channels = [], []
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, RANKS, directory, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._channels.append(ours)

    def train(self, task, environments, holds=(), **arguments):
        """Starts a training, and returns it: `module:function`, and what differs in the ranks' environments."""
        for channel, environment in zip(self._channels, environments):
            channel.send({"task": task, "environment": environment, "holds": holds, "arguments": arguments})
        return Training(self._channels)

    def end(self):
        for process in self._processes:
            process.kill()
            process.join()


class Training:
    """A training that is under way in all ranks."""

    def __init__(self, channels):
        self._channels = channels

    def reach(self, step):
        """Waits until every rank holds before a step."""
        for rank, said in enumerate(self._said()):
            assert said == {"reached": step}, f"rank {rank}: {said.get('failure', said)}"

    def go_on(self):
        for channel in self._channels:
            channel.send("go on")

    def results(self):
        """Waits for the end, and returns the results of the ranks and what pfo warned of in each."""
        said = self._said()
        for rank, of_rank in enumerate(said):
            assert "result" in of_rank, f"rank {rank}: {of_rank.get('failure', of_rank)}"
        return [of_rank["result"] for of_rank in said], [of_rank["warnings"] for of_rank in said]

    def _said(self):
        for rank, channel in enumerate(self._channels):
            assert channel.poll(PATIENCE_S), f"rank {rank} hangs"
        return [channel.recv() for channel in self._channels]
