"""The facts in words, without what names a machine."""

from __future__ import annotations

from typing import Any


def of(facts: dict[str, Any]) -> str:
    """The report in Markdown."""
    parts, laws = facts["parts"], facts["laws"]
    who = parts.get("identity", {})
    lines = [
        f"# {who.get('model')}, driver {who.get('driver')}: what was read",
        "",
        "No clock, limit or mode was set. `facts.json` has the readings themselves.",
        "",
    ]
    for title, make in (
        ("Energy counter and power readings", _meters),
        ("Power and clocks", _powers),
        ("A minute of dense work", _minute),
        ("Work and rest in turn", _waves),
        ("Energy of instructions", _instructions),
        ("Time of each read, µs", _reads),
        ("What reading costs the work", _observer),
        ("pfo beside the framework", _programs),
        ("Parts", _parts),
    ):
        lines += [f"## {title}", ""]
        try:
            lines += make(facts, parts, laws)
        except (KeyError, TypeError, IndexError, AttributeError, ValueError):
            lines.append("Not measured.")
        lines.append("")
    return "\n".join(lines)


def _table(head: list[str], rows: list[list[Any]]) -> list[str]:
    def row(cells: list[Any]) -> str:
        return "| " + " | ".join("–" if cell is None else str(cell) for cell in cells) + " |"

    return [row(head), "|" + "---|" * len(head), *map(row, rows)]


def _q(found: Any, *names: str) -> list[Any]:
    return [found[name] if found else None for name in names]


def _meters(facts: Any, parts: Any, laws: Any) -> list[str]:
    counter = laws["energy_counter"]
    rows = [
        ["energy counter, at work", *_q(counter["refresh_ms"], "p10", "p50", "p90"), None, None],
        ["energy counter, idle", *_q(counter["refresh_idle_ms"], "p10", "p50", "p90"), None, None],
    ]
    for name, reading in laws["power_readings"].items():
        if reading:
            rise = reading["rise"]
            rows.append([name, *_q(reading["refresh_ms"], "p10", "p50", "p90"), rise["10%_ms"], rise["90%_ms"]])
    return [
        *_table(["reading", "changes every, ms: 10 %", "50 %", "90 %", "10 % of a rise after, ms", "90 %"], rows),
        "",
        f"The counter counts in units of {counter['granularity_mj']} mJ.",
    ]


def _powers(facts: Any, parts: Any, laws: Any) -> list[str]:
    rows = []
    for name, idle in (laws["idle"] or {}).items():
        instant = (idle.get("power_instant_mw") or {}).get("p50")
        rows.append([name, idle["by_counter_w"], instant, idle["sm_mhz"], idle["memory_mhz"], idle["reasons"], None])
    for kind, law in (laws["kinds"] or {}).items():
        rows.append([
            kind, law["by_counter_w"], *_q(law["power_instant_w"], "p50"), *_q(law["sm_mhz"], "p50"),
            *_q(law["memory_mhz"], "p50"), hex(law["reasons"]), law["capped_share"],
        ])  # fmt: skip
    return _table(["load", "W by counter", "W instant", "SM MHz", "memory MHz", "reasons", "capped share"], rows)


def _minute(facts: Any, parts: Any, laws: Any) -> list[str]:
    law = laws["minute"]
    return _table(
        ["what", "seen"],
        [
            ["lasted, s", law["lasted_s"]],
            ["SM clock, MHz: lowest, median, highest", _q(law["sm_mhz"], "min", "p50", "max")],
            ["power by counter, W", law["by_counter_w"]],
            ["temperature at begin and end, °C", law["temperature_first_last_c"]],
            ["reasons", hex(law["reasons"])],
            ["share of time in which the power cap slowed", law["capped_share"]],
            ["energy by counter to integral of instant power", law["counter_to_integral"]],
            ["a piece of work at begin and end, ms", law["piece_ms_first_last_tenth"]],
            ["the power limit slows work after, ms", (laws["limit"] or {}).get("slows_after_ms")],
            ["equal work takes longer then, times", (laws["limit"] or {}).get("pieces_take_longer_by")],
            ["clocks are kept after the last process, s", (laws["after_work"] or {}).get("keeps_its_clock_s")],
        ],
    )


def _waves(facts: Any, parts: Any, laws: Any) -> list[str]:
    rows = []
    for wave in laws["waves"]:
        found, means = wave["fit"] or {}, wave["mean_of_readings_w"]
        rows.append([
            f"{wave['kind']}, {wave['on_ms']} of {wave['period_ms']}", wave["of_steady_powers_w"], wave["by_counter_w"],
            means.get("power_instant_mw"), means.get("power_usage_mw"), means.get("power_average_mw"),
            found.get("power_w"), found.get("delay_ms"), found.get("rms_share"),
        ])  # fmt: skip
    head = [
        "work, ms", "W of steady powers", "by counter", "instant", "usage", "average", "fit, W", "delay, ms", "left",
    ]  # fmt: skip
    return _table(head, rows)


def _instructions(facts: Any, parts: Any, laws: Any) -> list[str]:
    law = laws["instructions"]
    fitted = law["by_regression"]
    rows = [[kind, watts, *(each.get(kind) for each in law["by_integral_w"].values())]
            for kind, watts in fitted["power_w"].items()]  # fmt: skip
    return [
        *_table(["instruction", "W by regression over the counter", *law["by_integral_w"]], rows),
        "",
        f"The counter is {fitted['delay_ms']} ms late; {fitted['rms_share']} of its steps is left unexplained.",
    ]


def _reads(facts: Any, parts: Any, laws: Any) -> list[str]:
    read = laws["read_us"]
    rows = [
        [name, *_q(times, "p50", "p99", "max"), *_q((read["at_work"] or {}).get(name), "p50", "p99", "max")]
        for name, times in read["idle"].items()
    ]
    return _table(["read", "idle: 50 %", "99 %", "longest", "at work: 50 %", "99 %", "longest"], rows)


def _observer(facts: Any, parts: Any, laws: Any) -> list[str]:
    rows = [
        [kind, reader, law["mean_ms"], law["empty_p50_us"], law.get("calls_per_s"), law.get("in_driver_share")]
        for kind, readers in laws["observer"].items()
        for reader, law in readers.items()
    ]
    return _table(["work", "reader", "mean of a piece, ms", "empty launch, µs", "calls/s", "time in driver"], rows)


def _programs(facts: Any, parts: Any, laws: Any) -> list[str]:
    shim = parts["shim"]
    if "left_out" in shim:
        return [f"Left out: {shim['left_out']}"]
    longer = shim.get("longer_by_shim_us")
    return _table(
        ["what", "seen"],
        [
            ["timing", shim["timing"]],
            ["instruction by PyTorch's events, ms", _q(shim["instruction_ms"]["by_pytorch"], "p50", "p99")],
            ["instruction by the shim, ms", _q(shim["instruction_ms"]["by_shim"], "p50", "p99")],
            ["the shim's is longer by, µs (1, 50, 99 %)", _q(longer, "p1", "p50", "p99")],
            ["a call of the shim, µs", _q(shim["call_us"], "p50", "p99")],
            ["cost of a followed instruction, µs", shim["cost_of_a_followed_instruction_us"]],
        ],
    )


def _parts(facts: Any, parts: Any, laws: Any) -> list[str]:
    def outcome(part: Any) -> str:
        found = part if isinstance(part, dict) else {}
        return str(found.get("failed") or found.get("left_out") or "measured").replace("\n", " ")

    took = facts["parts_took_s"]
    return _table(["part", "took, s", "outcome"], [[name, took.get(name), outcome(parts[name])] for name in parts])
