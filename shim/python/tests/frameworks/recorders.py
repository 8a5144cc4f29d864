"""For each rank a daemon that writes down what it is told."""

from ranks import RANKS
from recorder import Recorder


class Recorders:
    """Recorders, and the environments in which ranks find them."""

    def __init__(self, directory):
        self._recorders = [Recorder(directory / f"{rank}.sock") for rank in range(RANKS)]
        self.environments = [
            {"PFO_SOCKET": str(recorder.path), "PFO_JOB": "job", "PFO_GPU": "GPU-1234"}
            for recorder in self._recorders
        ]

    def expect(self, results, steps):
        """Requires that each rank has told of these steps, with the instructions of its result's order."""
        for recorder, result in zip(self._recorders, results):
            assert result["order"]
            recorder.expect(*_marks(result["order"], steps))

    def expect_nothing(self):
        assert not any(recorder.said for recorder in self._recorders)


def _marks(order, steps):
    marks = []
    for step in range(steps):
        marks.append(f"step {step}")
        for instruction, microbatch, chunk in order:
            unit = f"{instruction} {microbatch}" + (f" of chunk {chunk}" if chunk else "")
            marks += [unit, f"end of {unit}"]
        marks.append(f"end of step {step}")
    return [*marks, "goodbye"]
