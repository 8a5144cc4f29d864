"""How a session hears of what a framework runs: one ``follow`` for each framework.

- :func:`pfo.integrations.pipelining.follow` for ``torch.distributed.pipelining``
- :func:`pfo.integrations.deepspeed.follow` for DeepSpeed's ``PipelineEngine``
- :func:`pfo.integrations.megatron.follow` for the schedules of Megatron-Core

Each changes only the objects that it is given, never a class or a module of the framework. What cannot be
followed is logged as one warning with the reason, and trains on untouched, at default clocks.
"""
