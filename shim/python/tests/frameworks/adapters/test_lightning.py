"""Lightning, by both of its names."""

import importlib
import pickle

import pytest
import torch
from node import until
from of_a_model import ACCUMULATED, BATCHES, STEPS, Data, Model, marks
from torch.utils.data import DataLoader

import pfo_gpu.integrations.lightning


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def pl(request):
    return importlib.import_module(request.param)


def trained(pl, follow, manual=False, fail_at=None):
    """Returns the weights, and what `follow` returned for the trainer."""

    class Module(pl.LightningModule):
        automatic_optimization = not manual

        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, index):
            if index == fail_at:
                raise RuntimeError("out of memory")
            loss = self.model(**batch)["loss"]
            if not manual:
                return loss
            self.manual_backward(loss / ACCUMULATED)
            if index % ACCUMULATED == ACCUMULATED - 1:
                self.optimizers().step()
                self.optimizers().zero_grad()
            return None

        def validation_step(self, batch, index):
            self.model(**batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        accumulate_grad_batches=1 if manual else ACCUMULATED,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        val_check_interval=ACCUMULATED,
    )
    followed = follow(trainer) if follow else None
    module = Module()
    loader = DataLoader(Data(), batch_size=BATCHES)
    trainer.fit(module, loader, loader)
    return module.model.digest(), followed


def test_steps_forwards_backwards_and_the_optimizer_are_told_and_no_bit_changes(pl, recorder, warnings):
    alone, _ = trained(pl, None)
    told, followed = trained(pl, pfo_gpu.integrations.lightning.follow)
    assert told == alone
    assert followed.following.session.closed
    recorder.expect(*marks(STEPS, "goodbye"))
    assert not warnings()


def test_a_callback_is_added_once(pl, recorder):
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    added = pfo_gpu.integrations.lightning.follow(trainer)
    assert pfo_gpu.integrations.lightning.follow(trainer) is added and trainer.callbacks.count(added) == 1
    assert isinstance(added, pl.Callback)
    spawned = pickle.loads(pickle.dumps(added))
    assert isinstance(spawned, pl.Callback) and spawned.following is not added.following
    assert isinstance(pfo_gpu.integrations.lightning.callback(package=pl.__name__), pl.Callback)


def test_with_manual_optimization_nothing_overlaps_and_no_bit_changes(pl, recorder, warnings):
    alone, _ = trained(pl, None, manual=True)
    told, followed = trained(pl, pfo_gpu.integrations.lightning.follow, manual=True)
    assert told == alone
    assert followed.following.session is not None and not warnings()
    until("the session has ended", lambda: "goodbye" in recorder.marks())
    said = recorder.marks()
    assert said[:7] == [
        "step 0",
        "forward 0",
        "end of forward 0",
        "backward 0",
        "end of backward 0",
        "forward 1",
        "end of forward 1",
    ]
    assert sum(mark.startswith("optimizer_step") for mark in said) == STEPS


def test_a_training_that_fails_ends_the_session(pl, recorder):
    with pytest.raises(RuntimeError, match="out of memory"):
        trained(pl, pfo_gpu.integrations.lightning.follow, fail_at=1)
    recorder.expect("step 0", "forward 0", "end of forward 0", "backward 0", "end of backward 0",
                    "forward 1", "end of forward 1", "end of step 0", "goodbye")


def test_what_is_no_trainer_is_one_warning(recorder, warnings):
    assert pfo_gpu.integrations.lightning.follow(object()) is None
    assert len(warnings()) == 1 and recorder.said == []


def test_what_is_trained_can_be_pickled_inside_of_fit(pl, recorder, warnings):
    pickled = []

    class Pickling(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            with pytest.MonkeyPatch.context() as patch:
                # Neither this callback nor the module is one that pickle finds.
                patch.setattr(trainer.strategy, "_lightning_module", None)
                patch.setattr(trainer.strategy, "_model", None)
                pickled.append(pickle.dumps(trainer.strategy))

    def follow(trainer):
        trainer.callbacks.append(Pickling())
        return pfo_gpu.integrations.lightning.follow(trainer)

    trained(pl, follow)
    assert pickled and not any(b"pfo_gpu" in state for state in pickled)
    assert not warnings()
