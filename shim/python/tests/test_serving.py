"""An inference server: its phases as instructions, with clocks of their own.

Plans have a forward and a backward of each microbatch: the prefill of a batch is the one, its tokens are the other.
"""

import queue
import threading

import pytest
from node import until
from one_stage import write_plan

import pfo_gpu

# What prefill and decode run at, in MHz.
PREFILL, DECODE = 1740, 1005


class Server:
    """Takes batches of prompts from a queue: a prefill of each, and then the tokens of all, eight at a time."""

    def __init__(self, session):
        self.session = session
        self.requests = queue.Queue()
        self.answers = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self):
        self.requests.put(None)
        self._thread.join()

    def _serve(self):
        while (prompts := self.requests.get()) is not None:
            with self.session.step():
                with self.session.instruction("forward"):
                    lengths = [len(prompt) for prompt in prompts]
                with self.session.instruction("backward"):
                    self.answers.append([" token" * 8 + str(length) for length in lengths])


@pytest.fixture
def server(node):
    with pfo_gpu.Session(setup_timeout_s=60, num_microbatches=1) as session:
        server = Server(session)
        yield server
        server.close()


def test_the_phases_of_a_server_run_at_clocks_of_their_own(node, server):
    server.requests.put(["a prompt"])
    daemons = pfo_gpu.Node()
    until("the first batch is known", lambda: daemons.status().job("job").ranks[0].step == 0)
    phases = [("forward", 0, PREFILL), ("backward", 0, DECODE)]
    daemons.swap("job", write_plan(node, phases, num_microbatches=1))

    def alternates():
        server.requests.put(["a prompt", "another"])
        return {PREFILL, DECODE} <= set(node.clocks_set(0))

    until("both phases have had their clock", alternates)
    assert daemons.status().job("job").ranks[0].mismatched_steps == 0
