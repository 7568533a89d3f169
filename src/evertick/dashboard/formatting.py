"""Numbers, durations and instants as people read them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

NONE = "–"  # noqa: RUF001 - a dash is meant

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_NO_LIMIT = 2**31 - 1
_MANY = ((1_000_000_000, "B"), (1_000_000, "M"), (10_000, "k"))


def number(value: float | None) -> str:
    """With separators, and short from ten thousand on: 9,870, 12.3k, 4.1M."""
    if value is None:
        return NONE
    for size, unit in _MANY:
        if abs(value) >= size:
            scale = 1000 if unit == "k" else size
            return f"{value / scale:,.1f}".removesuffix(".0") + unit
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.2g}"


def limit(value: float) -> str:
    """A quota; the largest means that there is none."""
    return "no limit" if value >= _NO_LIMIT else number(value)


def size(value: float) -> str:
    """Bytes: 512 bytes, 1.5 GB."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "KB")):
        if value >= 1024**power:
            return f"{value / 1024**power:.1f}".removesuffix(".0") + f" {unit}"
    return f"{value:.0f} bytes"


def seconds(value: float | None) -> str:
    """The two largest units: 1d 4h, 3m 20s, 0.4s."""
    if value is None:
        return NONE
    if value < 10:
        return f"{value:.1f}".removesuffix(".0") + "s"
    parts, left = [], int(value)
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def milliseconds(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.0f} ms" if value < 10_000 else seconds(value / 1000)


def relative(at: datetime, now_at: datetime) -> str:
    """`in 5m`, `2h 3m ago`. The script of the page says the same, and keeps it current."""
    left = (at - now_at).total_seconds()
    if abs(left) < 1:
        return "now"
    return f"in {seconds(int(left))}" if left > 0 else f"{seconds(int(-left))} ago"


def absolute(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def instant(at: datetime) -> str:
    """For the attribute of a `time` element."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def target_text(target: Mapping[str, Any]) -> str:
    """Where a job's runs go, in a few words."""
    match target["type"]:
        case "http":
            return str(target["url"]).split("://", 1)[-1]
        case "worker":
            return f"{target['handler']} on {target['queue']}"
        case broker:
            return str(broker).replace("_", " ")
