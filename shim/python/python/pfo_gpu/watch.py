"""Logs, from a thread, that a session is lost, that it is back, or that it reports nothing."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Callable, Optional

if TYPE_CHECKING:
    from pfo_gpu.session import Session

_EVERY_S = 1.0

# Looks without an event after which a lease that reports nothing is one warning: a minute. Looks and not seconds,
# of which a process that was stopped has lived through none.
_SILENT_LOOKS = 60

# What comes and goes all day is said by `session.problem`.
_MOST_REPORTS = 20

# `PFO_NO_ANSWER` and `PFO_CLOSED_IDLE` in `pfo.h`: what is known at once says why later, and what ends by itself
# because nothing is reported begins again with the next event.
_NO_ANSWER, _IDLE = 152, 100

_watcher: Optional[threading.Thread] = None


class Watched:
    """What has been logged about a session."""

    def __init__(self, problem_code: Optional[int]) -> None:
        self._code = problem_code
        self._reconnects = 0
        self._dropped = 0
        self._sent = 0
        self._silent_looks = 0
        self._has_said_silence = False
        self._reports = 0

    def look(self, session: Session) -> None:
        """Logs what has changed since the last look."""
        problem, counters = session.problem, session.counters
        code = None if problem is None else problem.code
        if code is not None and self._code in (None, _NO_ANSWER) and code not in (self._code, _IDLE):
            if self._code is None:
                self._dropped = counters.dropped
            self._say("training at default clocks: %s", problem)
            self._code = code
        elif code is None and self._code is not None:
            self._say("pfod has the session of %s again, %s", session.in_words(), self._lost(counters.dropped))
            self._code = None
        elif code is None and counters.reconnects > self._reconnects and self._was_dropped(counters.dropped):
            self._say("the session of %s was lost and is back, %s", session.in_words(), self._lost(counters.dropped))
        if code is None:
            self._reconnects, self._dropped = counters.reconnects, counters.dropped
            self._look_for_silence(session, counters.sent)

    def _was_dropped(self, dropped: int) -> bool:
        return dropped > self._dropped

    def _lost(self, dropped: int) -> str:
        return f"and {dropped - self._dropped} events in between are lost"

    def _look_for_silence(self, session: Session, sent: int) -> None:
        is_silent = sent == self._sent and not session.is_quiet
        self._silent_looks = self._silent_looks + 1 if is_silent else 0
        self._sent = sent
        if self._silent_looks < _SILENT_LOOKS or self._has_said_silence:
            return
        self._has_said_silence = True
        self._say(
            "%s holds the lease of GPU %s and has reported nothing for a minute%s (reported once)",
            session.in_words(),
            session.gpu,
            ", after it had reported steps: no matter if it evaluates or saves"
            if sent
            else ": call follow before anything keeps a step of the framework, or session.step_begin() and the others"
            " in the training loop",
        )

    def _say(self, text: str, *arguments: object) -> None:
        self._reports += 1
        if self._reports <= _MOST_REPORTS:
            logging.getLogger("pfo_gpu").warning(text, *arguments)


def start(sessions: Callable[[], list[Session]]) -> None:
    """Watches these sessions from now on, if no thread of this process does."""
    global _watcher
    # A forked process has a thread that is not alive.
    if _watcher is not None and _watcher.is_alive():
        return
    _watcher = threading.Thread(target=_watch, args=(sessions,), name="pfo-watch", daemon=True)
    try:
        _watcher.start()
    except RuntimeError:
        # The process may start no more threads: sessions go unwatched, and training runs on.
        _watcher = None


def _watch(sessions: Callable[[], list[Session]]) -> None:
    rest = threading.Event()
    while not rest.wait(_EVERY_S):
        for session in sessions():
            try:
                session._watched.look(session)
            except Exception:
                # A handler of the trainer's log may raise.
                pass
        # A session that the trainer drops ends.
        session = None  # type: ignore[assignment]
