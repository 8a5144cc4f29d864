"""A simulated GPU node, on which a training job is tuned without a GPU, without root and without Rust.

``python -m pfo_gpu playground`` starts it; see :mod:`pfo_gpu_playground.command`.
"""
