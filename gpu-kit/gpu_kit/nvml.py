"""NVML through ctypes: getters only.

A name that is no getter raises before the library is asked, so that no mistake elsewhere in the kit can set
anything.
"""

from __future__ import annotations

import ctypes
import re
import time
from typing import Any, Callable, Optional

# All that this kit may call. `nvmlDeviceGetFieldValues` only fills the caller's array.
_GETTER = re.compile(r"nvml(Init_v2|Shutdown|(Device|System)Get[A-Za-z0-9_]+)\Z")

NOT_FOUND = "symbol-not-found"
_RESULTS = {
    0: "success", 1: "uninitialized", 2: "invalid-argument", 3: "not-supported", 4: "no-permission",
    6: "not-found", 7: "insufficient-size", 9: "driver-not-loaded", 10: "timeout", 13: "function-not-found", 15: "gpu-is-lost",
    18: "library-and-driver-differ", 25: "argument-version-mismatch", 26: "deprecated", 27: "not-ready", 999: "unknown",
}  # fmt: skip

_u32, _u64, _i32 = ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_int


class FieldValue(ctypes.Structure):
    """``nvmlFieldValue_t``."""

    _fields_ = [
        ("field", _u32), ("scope", _u32), ("timestamp_us", ctypes.c_longlong), ("latency_us", ctypes.c_longlong),
        ("value_type", _u32), ("result", _u32), ("value", ctypes.c_ubyte * 8),
    ]  # fmt: skip

    def number(self) -> float:
        """The value, as its type says."""
        kinds: list[Any] = [
            ctypes.c_double, _u32, ctypes.c_ulong, _u64, ctypes.c_longlong, _i32, ctypes.c_ushort,
        ]  # fmt: skip
        kind = kinds[self.value_type] if self.value_type < len(kinds) else _u64
        return kind.from_buffer_copy(bytes(self.value)).value


class Sample(ctypes.Structure):
    """``nvmlSample_t``."""

    _fields_ = [("timestamp_us", _u64), ("value", ctypes.c_ubyte * 8)]


class Nvml:
    """One GPU of an open library."""

    def __init__(self, library: str, index: int) -> None:
        self._library = ctypes.CDLL(library)
        result = self._call("nvmlInit_v2")
        if result != 0:
            raise RuntimeError(f"{library} cannot be initialized: {name_of(result)}")
        self.handle = ctypes.c_void_p()
        result = self._call("nvmlDeviceGetHandleByIndex_v2", _u32(index), ctypes.byref(self.handle))
        if result != 0:
            raise RuntimeError(f"GPU {index} cannot be opened: {name_of(result)}")

    def _function(self, name: str) -> Optional[Callable[..., int]]:
        if not _GETTER.match(name):
            raise ValueError(f"{name} is no getter, and this kit only reads")
        return getattr(self._library, name, None)

    def _call(self, name: str, *arguments: Any) -> int:
        function = self._function(name)
        return -1 if function is None else function(*arguments)

    def text(self, name: str, of_system: bool = False) -> Optional[str]:
        """What a getter writes into a buffer."""
        buffer = ctypes.create_string_buffer(96)
        arguments = () if of_system else (self.handle,)
        result = self._call(name, *arguments, buffer, _u32(96))
        return buffer.value.decode(errors="replace") if result == 0 else None

    def numbers(self, name: str, *before: int, outs: int = 1, kind: Any = _u32) -> Any:
        """The numbers that a getter returns; a number alone if it is one; the result's name if it is none."""
        places = [kind() for _ in range(outs)]
        result = self._call(name, self.handle, *map(_u32, before), *map(ctypes.byref, places))
        if result != 0:
            return name_of(result)
        values = [place.value for place in places]
        return values[0] if outs == 1 else values

    def system_number(self, name: str) -> Any:
        """A number of the system."""
        place = _i32()
        result = self._call(name, ctypes.byref(place))
        return place.value if result == 0 else name_of(result)

    def listed(self, name: str, *before: int, room: int = 512) -> Any:
        """A list of numbers."""
        count, places = _u32(room), (_u32 * room)()
        result = self._call(name, self.handle, *map(_u32, before), ctypes.byref(count), places)
        return list(places[: count.value]) if result == 0 else name_of(result)

    def field(self, field: int, scope: int = 0) -> FieldValue:
        """One field, with the result of its own or, if the call failed, of the call."""
        value = FieldValue(field=field, scope=scope)
        result = self._call("nvmlDeviceGetFieldValues", self.handle, _i32(1), ctypes.byref(value))
        if result != 0:
            value.result = result & 0xFFFFFFFF
        return value

    def fields(self, wanted: list[tuple[int, int]]) -> list[FieldValue]:
        """Several fields with one call."""
        values = (FieldValue * len(wanted))(*(FieldValue(field=f, scope=s) for f, s in wanted))
        result = self._call("nvmlDeviceGetFieldValues", self.handle, _i32(len(wanted)), values)
        if result != 0:
            for value in values:
                value.result = result & 0xFFFFFFFF
        return list(values)

    def samples(self, kind: int) -> Any:
        """What the driver keeps of a kind of samples: type of value, and (timestamp in us, value)."""
        value_type, count = _u32(), _u32(0)
        place = (_u32(kind), _u64(0), ctypes.byref(value_type), ctypes.byref(count))
        result = self._call("nvmlDeviceGetSamples", self.handle, *place, None)
        if result not in (0, 7) or count.value == 0 or count.value > 100_000:
            return name_of(result)
        buffer = (Sample * count.value)()
        result = self._call("nvmlDeviceGetSamples", self.handle, *place, buffer)
        if result != 0:
            return name_of(result)
        values = [
            [each.timestamp_us, FieldValue(value_type=value_type.value, value=each.value).number()]
            for each in buffer[: count.value]
        ]
        return {"value_type": value_type.value, "values": values}

    def violation(self, policy: int) -> Any:
        """Reference time and time of violation of a policy, in ns as the driver gives them."""
        times = (_u64 * 2)()
        result = self._call("nvmlDeviceGetViolationStatus", self.handle, _u32(policy), times)
        return list(times) if result == 0 else name_of(result)

    def processes(self, name: str) -> Any:
        """How many processes a getter lists; who they are is not kept."""
        count, room = _u32(64), ctypes.create_string_buffer(64 * 64)
        result = self._call(name, self.handle, ctypes.byref(count), room)
        return count.value if result == 0 else name_of(result)

    def reader(self, reading: Reading) -> Callable[[], Any]:
        """A function that reads one thing with as little of Python as possible; None is an error."""
        if reading.field is not None:
            read_fields = self._function("nvmlDeviceGetFieldValues") or (lambda *_: -1)
            value = FieldValue(field=reading.field, scope=reading.scope)
            one, handle, place = _i32(1), self.handle, ctypes.byref(value)

            def read_field() -> Any:
                return value.number() if not read_fields(handle, one, place) and not value.result else None

            return read_field
        function = self._function(reading.function)
        if function is None:
            return lambda: None
        out = (_u64 if reading.wide else _u32)()
        arguments = (self.handle, *map(_u32, reading.before), ctypes.byref(out))

        def read() -> Any:
            return out.value if function(*arguments) == 0 else None

        return read


class Reading:
    """Something of a GPU that is read again and again."""

    def __init__(
        self,
        name: str,
        function: str = "",
        *before: int,
        wide: bool = False,
        field: Optional[int] = None,
        scope: int = 0,
    ) -> None:
        self.name, self.function, self.before, self.wide = name, function, before, wide
        self.field, self.scope = field, scope


ENERGY = Reading("energy_mj", "nvmlDeviceGetTotalEnergyConsumption", wide=True)
POWER = Reading("power_usage_mw", "nvmlDeviceGetPowerUsage")
AVERAGE = Reading("power_average_mw", field=185)
INSTANT = Reading("power_instant_mw", field=186)
POWERS = [
    POWER, AVERAGE, INSTANT,
    Reading("power_average_scope1_mw", field=185, scope=1), Reading("power_instant_scope1_mw", field=186, scope=1),
    Reading("power_average_scope2_mw", field=185, scope=2), Reading("power_instant_scope2_mw", field=186, scope=2),
    Reading("power_average_scope3_mw", field=185, scope=3), Reading("power_instant_scope3_mw", field=186, scope=3),
]  # fmt: skip
SM_CLOCK = Reading("sm_mhz", "nvmlDeviceGetClockInfo", 1)
MEMORY_CLOCK = Reading("memory_mhz", "nvmlDeviceGetClockInfo", 2)
TEMPERATURE = Reading("temperature_c", "nvmlDeviceGetTemperature", 0)
MEMORY_TEMPERATURE = Reading("memory_temperature_c", field=82)
REASONS = Reading("reasons", "nvmlDeviceGetCurrentClocksThrottleReasons", wide=True)
STATE = Reading("performance_state", "nvmlDeviceGetPerformanceState")
UTILIZATION = Reading("sm_utilization", "nvmlDeviceGetUtilizationRates", wide=True)
SW_POWER_CAP = Reading("sw_power_cap_ns", field=74)

# Counters of what kept the clock down by name, with the field's number before and from driver 580.82 on.
THROTTLE_COUNTERS = {
    "sw_power_cap": (74, 74), "sync_boost": (76, 76), "sw_thermal": (251, 269), "hw_thermal": (252, 270),
    "hw_power_brake": (253, 271),
}  # fmt: skip


def name_of(result: int) -> str:
    """A result in words."""
    return NOT_FOUND if result == -1 else _RESULTS.get(result, f"result-{result}")


def renumbered(driver: str) -> bool:
    """Whether a driver has the field numbers of 580.82 and later."""
    numbers = [int(part) for part in re.findall(r"\d+", driver)[:2]]
    return numbers >= [580, 82]


def now_ns() -> int:
    """The time of which all times in the facts are."""
    return time.monotonic_ns()
