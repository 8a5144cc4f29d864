"""The schedules of Megatron-Core, run by Megatron-Core itself."""

import inspect

import pfo_gpu.integrations.megatron
import pytest
import torch
from megatron.core.transformer import TransformerConfig

TRAIN = "megatron_training:train"
STEPS = 2


@pytest.mark.parametrize("chunks", [1, 2], ids=["1F1B", "Interleaved1F1B"])
def test_every_instruction_is_told_in_the_schedules_order_and_no_bit_changes(ranks, recorders, chunks):
    training = {"steps": STEPS, "chunks": chunks}
    alone, _ = ranks.train(TRAIN, recorders.environments, **training, followed=False).results()
    told, warnings = ranks.train(
        TRAIN, recorders.environments, **training, followed=True, evaluate=True
    ).results()
    assert told == alone
    assert not any(warnings)
    recorders.expect(told, STEPS)


def test_overlapped_communication_of_experts_is_refused_with_the_reason_and_trains_on_untouched(ranks, recorders):
    training = {"steps": STEPS}
    alone, _ = ranks.train(TRAIN, recorders.environments, **training, followed=False).results()
    refused, warnings = ranks.train(
        TRAIN, recorders.environments, **training, followed=True, overlapped=True
    ).results()
    assert refused == alone
    for of_rank in warnings:
        (warning,) = of_rank
        assert warning.startswith("Megatron-Core's combined 1F1B is not followed, ")
    recorders.expect_nothing()


@pytest.mark.parametrize(
    "spelled",
    [
        {"cuda_graph_impl": "full_iteration", "cuda_graph_modules": []},
        {"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"},
        {"cuda_graph_impl": "full_iteration"},
    ],
    ids=["impl and modules", "scope", "impl"],
)
def test_a_graph_of_the_full_iteration_is_refused_however_the_release_spells_it(recorder, warnings, spelled):
    size = {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "pipeline_dtype": torch.float32}
    if not spelled.keys() <= inspect.signature(TransformerConfig).parameters.keys():
        pytest.skip(f"this release has no {' and '.join(spelled)}")
    config = TransformerConfig(use_cpu_initialization=True, **size, **spelled)
    assert pfo_gpu.integrations.megatron.follow(config, num_microbatches=4) is None
    (warning,) = warnings()
    assert "with a CUDA graph of the full iteration is not followed" in warning
    assert recorder.said == []
