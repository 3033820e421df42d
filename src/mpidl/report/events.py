"""Events of a run in words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mpidl.errors import printable, shown
from mpidl.report.text import died, replaced

#: Details of an event that aren't told, and most characters of one.
LEFT_OUT = ("time", "event", "rank", "role", "virtual_time", "traceback")
LONGEST = 60


def in_words(event: Mapping[str, Any]) -> str:
    """Return what an event says, as one line without control characters."""
    return printable(_told(event))


def _told(event: Mapping[str, Any]) -> str:
    kind, rank, role = (event.get(name) for name in ("event", "rank", "role"))
    # An event of another kind, such as that of a simulation, lacks what these lines say.
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        if kind == "failure" and isinstance(cause := event.get("cause"), str):
            return f"rank {rank} ({role}) failed: {cause}"
        if kind == "failure":
            return died(rank, role, event)  # type: ignore[arg-type]
        if kind == "recovery":
            return replaced(rank, role, event)  # type: ignore[arg-type]
    told = {name: value for name, value in event.items() if name not in LEFT_OUT and value is not None}
    details = ", ".join(f"{name} {shown(_value(value), LONGEST)}" for name, value in told.items())
    of = "" if role in (None, "coordinator") else f" ({role})"
    return f"{kind}{of}{': ' * bool(details)}{details}"


def _value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def time_of_day(seconds: Any) -> str:
    """Return a time in seconds since the epoch as local time; "" if it is none, or none that a clock shows."""
    with suppress(OverflowError, ValueError, OSError):
        if isinstance(seconds, int | float):
            return time.strftime("%H:%M:%S", time.localtime(seconds))
    return ""
