"""Parts of requests to the daemons, and of their answers."""

from __future__ import annotations

import json
import math
import operator
import os
from numbers import Real
from typing import TYPE_CHECKING, Any, Optional, Union

from pfo_gpu._native import NodeError

if TYPE_CHECKING:
    from pfo_gpu.planner import Plan, Profile
    from pfo_gpu.planner.files import PathLike


def csv_of(profile: Union[Profile, PathLike, bytes]) -> bytes:
    if isinstance(profile, (bytes, str, os.PathLike)):
        return profile if isinstance(profile, bytes) else contents(profile)
    return profile.to_csv().encode()


def contents(path: PathLike) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def selector(job: str, uid: Optional[int]) -> dict[str, object]:
    return {"job": text("job", job), "uid": user(uid)}


def text(name: str, text: object) -> str:
    """Checks a text. Raises :class:`NodeError` with its name if it is something else."""
    if not isinstance(text, str):
        raise NodeError(f"{name} is {text!r}; it must be a text")
    return text


def time_s(name: str, time_s: Optional[float]) -> Optional[int]:
    """Checks a time in seconds since 1970, and cuts its fractions."""
    return None if time_s is None else whole(name, int(number(name, time_s, 0, "1764000000")), 64)


def user(uid: Optional[int]) -> Optional[int]:
    return None if uid is None else whole("uid", uid)


def whole(name: str, number: int, bits: int = 32) -> int:
    """Checks a whole number of at most this many bits. Raises :class:`NodeError` with its name if
    it is out of range."""
    try:
        whole = operator.index(number)
    except TypeError:
        raise NodeError(f"{name} is {number!r}; it must be a whole number") from None
    if not 0 <= whole < 1 << bits:
        raise NodeError(f"{name} is {whole}; it must be a whole number from 0 to {(1 << bits) - 1}")
    return whole


def number(name: str, number: float, least: float, example: str) -> float:
    """Checks a number. Raises :class:`NodeError` with its name unless it is finite and at least
    ``least``."""
    if isinstance(number, bool) or not isinstance(number, Real) or not least <= number < math.inf:
        raise NodeError(f"{name} is {number!r}; it must be a number from {least:g} on, such as {example}")
    return float(number)


def table(plan: Union[Plan, PathLike], label: Optional[str]) -> dict[str, object]:
    from pfo_gpu.planner import Plan

    if not isinstance(plan, Plan):
        label = label or os.path.basename(os.fspath(plan))
        plan = Plan.read(plan)
    return {"label": label or "from Python", "table": json.loads(plan._native.clock_table())}


def profile_of(csv: list[int]) -> Profile:
    from pfo_gpu.planner import Profile

    return Profile(bytes(csv))


def reason(state: Any) -> str:
    if state == {"ended": "stopped"}:
        return "it was stopped"
    paused = state.get("paused") if isinstance(state, dict) else None
    return (paused or {}).get("why") or "it was paused"


def power_w(known: list[dict[str, Any]], uuid: str, model: str) -> float:
    for name in (uuid, None):
        for power in known:
            if power["model"] == model and power["gpu_uuid"] == name and power["mhz"] is None:
                return float(power["power_w"])
    raise NodeError(
        f"the P2P-blocking power of {model} is not known; `pfoctl p2p measure` measures it"
    )
