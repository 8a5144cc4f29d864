"""Megatron-Bridge, and NeMo's recipes that train with it, through Megatron-Core's timers."""

from __future__ import annotations

from typing import Any, Optional

from pfo_gpu.integrations import megatron
from pfo_gpu.integrations.reporting import refuse_unknown, require_arguments, require_session
from pfo_gpu.session import Session


def callback(session: Optional[Session] = None, **rank: Any) -> Callback:
    """Makes a callback that follows a training: ``pretrain(config, forward_step,
    callbacks=[callback()])``.

    When training starts, the callback calls :func:`pfo_gpu.integrations.megatron.follow` with the
    model, the timers and the step of Megatron-Bridge. It raises nothing then.

    Args:
        session: The session; by default, one is opened when training starts.
        rank: Further arguments of the opened session, which have precedence; also
            ``num_microbatches``.

    Raises:
        TypeError: ``session`` is no session, or a session has no argument of such a name.
    """
    return Callback(session, rank)


class Callback:
    """A callback of Megatron-Bridge, which accepts any object with methods of these names."""

    def __init__(self, session: Optional[Session], rank: dict[str, Any]) -> None:
        require_session(session)
        require_arguments({name: value for name, value in rank.items() if name != "num_microbatches"})
        self.session = session
        self._rank = rank

    def on_train_start(self, context: Any) -> None:
        """Follows the model that is about to be trained."""
        try:
            config = _config(context.model)
            named = {"first_step": context.state.train_state.step, **self._rank}
            self.session = megatron.follow(config, context.state.timers, self.session, **named)
        except Exception as error:
            refuse_unknown("Megatron-Bridge", "a training of Megatron-Bridge", error)


def _config(model: Any) -> Any:
    from megatron.core.utils import get_model_config

    return get_model_config(model[0] if isinstance(model, list) else model)
