"""Report what a framework runs to a session: one ``follow`` for each framework.

- :func:`pfo_gpu.integrations.pipelining.follow` for ``torch.distributed.pipelining``
- :func:`pfo_gpu.integrations.pytorch.follow` for a loop in plain PyTorch, with DDP or FSDP
- :func:`pfo_gpu.integrations.deepspeed.follow` for DeepSpeed's ``PipelineEngine``
- :func:`pfo_gpu.integrations.megatron.follow` for the schedules of Megatron-Core
- :func:`pfo_gpu.integrations.megatron_bridge.callback` for Megatron-Bridge
- :func:`pfo_gpu.integrations.torchtitan.follow` for torchtitan's ``Trainer``
- :func:`pfo_gpu.integrations.nanotron.follow` for Nanotron's ``DistributedTrainer``
- :func:`pfo_gpu.integrations.lightning.follow` for Lightning's ``Trainer``, or ``callback`` for its callbacks
- :func:`pfo_gpu.integrations.huggingface.follow` for the ``Trainer`` of Transformers
- :func:`pfo_gpu.integrations.accelerate.follow` for an ``Accelerator``

Each changes only the objects that it is given, never a class or a module of the framework. If an
object cannot be followed, one warning gives the reason, and training continues unchanged at default
clocks.

Where ``follow`` opens the session, further arguments (``rank``) go to :class:`pfo_gpu.Session` and
have precedence over the framework's values. If a session is given, they are ignored.
"""
