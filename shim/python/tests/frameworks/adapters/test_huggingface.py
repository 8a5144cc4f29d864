"""The Trainer of Transformers."""

import copy
import pickle
from types import SimpleNamespace

import pytest
from accelerate.state import GradientState
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


def test_a_training_that_is_interrupted_ends_its_step_and_an_evaluation_says_nothing(trainer, recorder, warnings):
    told = trainer()

    def interrupt(*_arguments, **_named):
        raise KeyboardInterrupt

    with pfo_gpu.integrations.huggingface.follow(told):
        hook = told.model.register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            told.train()
        hook.remove()
        told.evaluate()
    recorder.expect("step 0", "forward 0", "end of forward 0", "end of step 0", "goodbye")
    assert not warnings()


def test_an_accelerator_that_is_made_anew_is_followed_too(trainer, recorder, warnings):
    told = trainer()
    with pfo_gpu.integrations.huggingface.follow(told):
        told.create_accelerator_and_postprocess()
        told.train()
    recorder.expect(*marks(STEPS, "goodbye"))
    assert not warnings()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda of: pickle.loads(pickle.dumps(of))])
def test_a_copy_trains_itself_and_tells_nothing(trainer, recorder, warnings, duplicate):
    # A training that was interrupted has left in it what nothing can pickle.
    GradientState._reset_state()
    told = trainer()
    with pfo_gpu.integrations.huggingface.follow(told):
        copied, before = duplicate(told), told.model.digest()
        copied.train()
        assert copied.model.digest() != before == told.model.digest()
    recorder.expect("goodbye")
    assert not warnings()
