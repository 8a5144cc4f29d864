"""Report to pfod what a training rank does, so that each forward and backward has its own clock.

::

    import pfo

    session = pfo.Session(pp_rank=stage, pp_degree=4)
    for batch in batches:
        with session.step():
            for m in range(microbatches):
                with session.instruction("forward", microbatch=m):
                    ...
"""

from pfo._native import Counters, Problem, __version__
from pfo.pipeline_frequency_optimizer import PipelineFrequencyOptimizer
from pfo.session import Session
from pfo.span import Span

__all__ = [
    "Counters",
    "PipelineFrequencyOptimizer",
    "Problem",
    "Session",
    "Span",
    "__version__",
]
