"""The Trainer of Transformers."""

from types import SimpleNamespace

import pytest
from of_a_model import ACCUMULATED, BATCHES, STEPS, Data, Model, marks
from transformers import Trainer, TrainingArguments

import pfo_gpu.integrations.huggingface


@pytest.fixture
def trainer(tmp_path):
    def trainer():
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            use_cpu=True,
            per_device_train_batch_size=BATCHES,
            gradient_accumulation_steps=ACCUMULATED,
            max_steps=STEPS,
            eval_strategy="steps",
            eval_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            label_names=["target"],
        )
        return Trainer(model=Model(), args=arguments, train_dataset=Data(), eval_dataset=Data())

    return trainer


def test_steps_forwards_backwards_and_the_optimizer_are_told_and_no_bit_changes(trainer, recorder, warnings):
    alone, told = trainer(), trainer()
    alone.train()
    session = pfo_gpu.integrations.huggingface.follow(told)
    assert pfo_gpu.integrations.huggingface.follow(told) is session
    told.train()
    session.close()
    assert told.model.digest() == alone.model.digest()
    recorder.expect(*marks(STEPS, "goodbye"))
    assert not warnings()


@pytest.mark.parametrize("trainer", [object(), SimpleNamespace(args=SimpleNamespace(n_gpu=2), compute_loss=None)])
def test_what_cannot_be_followed_is_one_warning(recorder, warnings, trainer):
    assert pfo_gpu.integrations.huggingface.follow(trainer) is None
    (warning,) = warnings()
    assert "is not followed, and trains on at default clocks" in warning
    assert recorder.said == []
