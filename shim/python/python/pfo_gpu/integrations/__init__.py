"""Report what a framework runs to a session: one ``follow`` for each framework.

- :func:`pfo_gpu.integrations.pipelining.follow` for ``torch.distributed.pipelining``
- :func:`pfo_gpu.integrations.deepspeed.follow` for DeepSpeed's ``PipelineEngine``
- :func:`pfo_gpu.integrations.megatron.follow` for the schedules of Megatron-Core

Each changes only the objects that it is given, never a class or a module of the framework. If something
cannot be followed, one warning gives the reason, and training continues unchanged at default clocks.
"""
