"""What the facts come to: the figures that a simulated GPU takes over (`pfo-sim create --like`)."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional

from gpu_kit import fit
from gpu_kit.watch import quantiles

_S = 1e-9


def of(parts: dict[str, Any]) -> dict[str, Any]:
    """The laws that these parts show; what failed or was left out shows none."""
    laws: dict[str, Any] = {}
    not_seen: dict[str, str] = {}
    for name, law in _LAWS.items():
        try:
            laws[name] = law(parts)
        except (KeyError, IndexError, TypeError, ZeroDivisionError, ValueError) as error:
            laws[name] = None
            not_seen[name] = f"{type(error).__name__}: {error}"
    return {**laws, "not_seen": not_seen}


def _changes(seen: dict[str, Any], name: str) -> list[list[Any]]:
    found: list[list[Any]] = seen["readings"][name]["changes"]
    # The first entry is when reading began.
    return found[1:]


def _intervals_ms(seen: dict[str, Any], name: str) -> list[float]:
    changes = _changes(seen, name)
    return [(b[0] - a[0]) / 1e6 for a, b in zip(changes, changes[1:])]


def _energy_counter(parts: dict[str, Any]) -> Any:
    seen = parts["step"]["on"]
    steps = [b[1] - a[1] for a, b in zip(_changes(seen, "energy_mj"), _changes(seen, "energy_mj")[1:])]
    period_s, _ = fit.rhythm(_counted(parts["idle_without_context"]))
    return {
        "period_ms": round(period_s * 1e3, 3) if period_s else None,
        "refresh_ms": quantiles(_intervals_ms(seen, "energy_mj")),
        "refresh_idle_ms": quantiles(_intervals_ms(parts["idle_without_context"], "energy_mj")),
        "smallest_step_mj": min(steps),
        "granularity_mj": _common_divisor(steps),
    }


def _common_divisor(numbers: list[int]) -> int:
    return math.gcd(*numbers) if numbers else 0


def _power_readings(parts: dict[str, Any]) -> Any:
    found: dict[str, Any] = {}
    for name in ("power_usage_mw", "power_average_mw", "power_instant_mw"):
        try:
            on = parts["step"]["on"]
            intervals = [ms for wave in parts["waves"] for ms in _intervals_ms(wave, name)]
            found[name] = {"refresh_ms": quantiles(intervals), "rise": _rise(on, name)}
        except KeyError:
            found[name] = None
    return found


def _rise(seen: dict[str, Any], name: str) -> Any:
    """When a reading had got to 10, 50 and 90 % of the way from rest to work, after work began."""
    changes = seen["readings"][name]["changes"]
    began = seen["load"]["began_ns"]
    before, after = changes[0][1], sorted(value for _, value in changes[-20:])[len(changes[-20:]) // 2]
    found = {}
    for percent in (10, 50, 90):
        goal = before + (after - before) * percent / 100
        found[f"{percent}%_ms"] = next((round((at - began) / 1e6, 1) for at, value in changes if value >= goal), None)
    return found


def _watts(seen: dict[str, Any]) -> float:
    changes = _changes(seen, "energy_mj")
    (first, before), (last, after) = changes[0], changes[-1]
    watts: float = (after - before) / 1e3 / ((last - first) * _S)
    return round(watts, 3)


def _idle(parts: dict[str, Any]) -> Any:
    found = {}
    for name in ("idle_without_context", "idle_with_context"):
        seen = parts[name]
        found[name] = {
            "by_counter_w": _watts(seen),
            **{
                reading: quantiles([value / 1e3 for _, value in each["changes"]])
                for reading, each in seen["readings"].items()
                if reading.startswith("power")
            },
            "sm_mhz": sorted({value for _, value in seen["readings"]["sm_mhz"]["changes"]}),
            "memory_mhz": sorted({value for _, value in seen["readings"]["memory_mhz"]["changes"]}),
            "reasons": sorted({value for _, value in seen["readings"]["reasons"]["changes"]}),
            "temperature_c": seen["readings"]["temperature_c"]["changes"][-1][1],
        }
    return found


def _quiet(parts: dict[str, Any]) -> Any:
    """Clocks and power of a GPU without work, by how often it is read."""
    found = {}
    for name, table in parts["idle_quiet"].items():
        found[name] = {
            "sm_mhz": sorted(set(_column(table, "sm_mhz", 0))),
            "power_instant_w": quantiles([mw / 1e3 for mw in _column(table, "power_instant_mw", 0)]),
        }
    often = parts["idle_without_context"]
    found["counter_without_a_pause"] = {
        "sm_mhz": sorted({mhz for _, mhz in often["readings"]["sm_mhz"]["changes"]}),
        "power_instant_w": quantiles([mw / 1e3 for _, mw in often["readings"]["power_instant_mw"]["changes"]]),
    }
    return found


def _limit(parts: dict[str, Any]) -> Any:
    """When a power limit slows work down that has just begun, and how much longer equal work takes then."""
    pieces = parts["step"]["on"]["load"]["first_pieces"]
    first = sorted(took for at, took in pieces if at < 50e6)
    if not first:
        return None
    usual = first[len(first) // 2]
    # The very first piece may wait for the launch.
    both = zip(pieces[1:], pieces[2:])
    slowed = next((at for (at, took), (_, after) in both if min(took, after) > 1.05 * usual), None)
    late = sorted(took for at, took in pieces if at > 500e6)
    return {
        "slows_after_ms": round(slowed / 1e6, 1) if slowed is not None else None,
        "pieces_take_longer_by": round(late[len(late) // 2] / usual, 4) if late else None,
    }


def _after_work(parts: dict[str, Any]) -> Any:
    """How long a GPU keeps its clocks when its last process has ended."""
    table = parts["context_closed"]
    at, clocks = _column(table, "at_ns", 0), _column(table, "sm_mhz", 0)
    lower = next((t for t, mhz in zip(at, clocks) if mhz < clocks[0]), None)
    return {"keeps_its_clock_s": round(lower * _S, 2) if lower is not None else None, "then_sm_mhz": min(clocks)}


def _read_us(parts: dict[str, Any]) -> Any:
    return {"idle": parts["reads_idle"], "at_work": parts.get("reads_loaded")}


def _column(table: dict[str, Any], name: str, share: float = 0.4) -> list[Any]:
    """A column's later rows."""
    if name not in table["columns"]:
        return []
    index = table["columns"].index(name)
    rows = table["rows"][int(len(table["rows"]) * share) :]
    return [row[index] for row in rows if row[index] is not None]


def _steady(table: dict[str, Any], share: float = 0.4) -> dict[str, Any]:
    at, energy = _column(table, "at_ns", share), _column(table, "energy_mj", share)
    new = [i for i in range(1, len(energy)) if energy[i] != energy[i - 1]]
    by_counter = None
    if len(new) > 1:
        by_counter = (energy[new[-1]] - energy[new[0]]) / 1e3 / ((at[new[-1]] - at[new[0]]) * _S)
    reasons = 0
    for reason in _column(table, "reasons", share):
        reasons |= reason
    capped = _column(table, "sw_power_cap_ns", share)
    lasted = (at[-1] - at[0]) if len(at) > 1 else 0
    return {
        "by_counter_w": round(by_counter, 2) if by_counter else None,
        "power_instant_w": quantiles([value / 1e3 for value in _column(table, "power_instant_mw", share)]),
        "power_average_w": quantiles([value / 1e3 for value in _column(table, "power_average_mw", share)]),
        "power_usage_w": quantiles([value / 1e3 for value in _column(table, "power_usage_mw", share)]),
        "sm_mhz": quantiles(_column(table, "sm_mhz", share)),
        "memory_mhz": quantiles(_column(table, "memory_mhz", share)),
        "temperature_c": quantiles(_column(table, "temperature_c", share)),
        "memory_temperature_c": quantiles(_column(table, "memory_temperature_c", share)),
        "reasons": reasons,
        "capped_share": round((capped[-1] - capped[0]) / lasted, 5) if capped and lasted else None,
    }


def _kinds(parts: dict[str, Any]) -> Any:
    return {kind: {**_steady(table), "took_ms": table["took_ms"]} for kind, table in parts["kinds"].items()}


def _minute(parts: dict[str, Any]) -> Any:
    table = parts["minute"]["work"]
    temperature = _column(table, "temperature_c", 0)
    at, instant = _column(table, "at_ns", 0), _column(table, "power_instant_mw", 0)
    energy = _column(table, "energy_mj", 0)
    integral = sum((p + q) / 2e3 * (b - a) * _S for p, q, a, b in zip(instant, instant[1:], at, at[1:]))
    pieces = parts["minute"]["piece_took_ms"]
    tenth = max(1, len(pieces) // 10)
    return {
        **_steady(table),
        "lasted_s": round((at[-1] - at[0]) * _S, 2),
        "temperature_first_last_c": [temperature[0], temperature[-1]],
        "counter_to_integral": round((energy[-1] - energy[0]) / 1e3 / integral, 5) if integral else None,
        "piece_ms_first_last_tenth": [
            round(sum(pieces[:tenth]) / tenth, 4), round(sum(pieces[-tenth:]) / tenth, 4),
        ],
    }


def _densest(parts: dict[str, Any]) -> Any:
    """The densest work for a minute, and in bursts that end before a power limit slows them."""
    steady = _steady(parts["minute"]["work"])
    densest = parts["context"]["kinds"]["densest"]
    burst = next(wave for wave in _waves(parts) if wave["kind"] == densest and wave["on_ms"] == 20)
    rest_w = _watts(parts["idle_with_context"])
    return {
        "kind": densest,
        "burst_w": round((burst["by_counter_w"] - (1 - burst["duty"]) * rest_w) / burst["duty"], 2),
        "steady_w": steady["by_counter_w"],
        "sm_mhz": steady["sm_mhz"]["p50"],
        "reasons": steady["reasons"],
    }


def _seconds(spans: list[list[Any]], kind: str = "") -> fit.Spans:
    return [(span[0] if len(span) == 3 else kind, span[-2] * _S, span[-1] * _S) for span in spans]


def _counted(seen: dict[str, Any]) -> fit.Counted:
    return [(at * _S, value / 1e3) for at, value in _changes(seen, "energy_mj")]


def _waves(parts: dict[str, Any]) -> Any:
    found = []
    rest_w = _watts(parts["idle_with_context"])
    for wave in parts["waves"]:
        spans = _seconds(wave["load"]["spans"], "work")
        begin, end = spans[0][1], spans[-1][2]
        counted = [(at, energy) for at, energy in _counted(wave) if begin <= at <= end]
        by_counter = (counted[-1][1] - counted[0][1]) / (counted[-1][0] - counted[0][0])
        lasted = end - begin
        duty = sum(ended - began for _, began, ended in spans) / lasted
        steady_w = _steady(parts["kinds"][wave["kind"]])["by_counter_w"]
        # A wave of the counter's own rhythm has as much work in each interval, which tells nothing apart.
        beats = abs(wave["period_ms"] - 100) < 5
        means = {}
        for name in ("power_instant_mw", "power_usage_mw", "power_average_mw"):
            if name in wave["readings"]:
                changes = [[at * _S, value / 1e3] for at, value in wave["readings"][name]["changes"]]
                means[name] = round(fit.integral(changes, begin, end) / lasted, 2)
        found.append(
            {
                "kind": wave["kind"],
                "on_ms": wave["on_ms"],
                "period_ms": wave["period_ms"],
                "duty": round(duty, 4),
                "of_steady_powers_w": round(duty * steady_w + (1 - duty) * rest_w, 2) if rest_w and steady_w else None,
                "by_counter_w": round(by_counter, 2),
                "mean_of_readings_w": means,
                "fit": None if beats else fit.powers(spans, _counted(wave)),
            }
        )
    return found


def _instructions(parts: dict[str, Any]) -> Any:
    seen = parts["instructions"]
    spans = _seconds(seen["load"]["spans"])
    fitted = fit.powers(spans, _counted(seen))
    integrals = {}
    for name in ("power_instant_mw", "power_usage_mw"):
        if name not in seen["readings"]:
            continue
        changes = [[at * _S, value / 1e3] for at, value in seen["readings"][name]["changes"]]
        means: dict[str, list[float]] = {}
        for kind, begin, end in spans:
            means.setdefault(kind, []).append(fit.integral(changes, begin, end) / (end - begin))
        integrals[name] = {kind: round(sum(each) / len(each), 2) for kind, each in sorted(means.items())}
    return {"by_regression": fitted, "by_integral_w": integrals}


def _observer(parts: dict[str, Any]) -> Any:
    found: dict[str, Any] = {}
    for each in parts["observer"]:
        entry = found.setdefault(each["kind"], {}).setdefault(each["reader"], {"mean_ms": [], "empty_p50_us": []})
        entry["mean_ms"].append(round(each["mean_ms"], 5))
        if each["empty_launch_us"]:
            entry["empty_p50_us"].append(each["empty_launch_us"]["p50"])
        if each["read"]:
            entry["calls_per_s"] = round(each["read"]["calls"] / each["read"]["lasted_s"], 1)
            entry["in_driver_share"] = round(each["read"]["in_driver_s"] / each["read"]["lasted_s"], 4)
    return found


_LAWS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "energy_counter": _energy_counter,
    "power_readings": _power_readings,
    "read_us": _read_us,
    "idle": _idle,
    "quiet": _quiet,
    "limit": _limit,
    "after_work": _after_work,
    "kinds": _kinds,
    "minute": _minute,
    "densest": _densest,
    "waves": _waves,
    "instructions": _instructions,
    "observer": _observer,
}
