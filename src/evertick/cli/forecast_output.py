"""Prints forecasts: a heat strip with a row for each hour or day, the fullest buckets, the advice."""

from collections.abc import Sequence
from datetime import UTC, timedelta
from math import log1p
from operator import attrgetter

from rich.text import Text

from evertick.cli.output import print_line, print_rows
from evertick.cli.tables import plain_console
from evertick.contract.forecast import Forecast, ForecastAdvice, RuleShare, Smear

BLOCKS = " ▁▂▃▄▅▆▇█"
HEAT = ("grey35", "blue", "cyan", "green", "yellow", "dark_orange", "red", "bold red")
_NAMES = 3
"""Jobs that a row names."""


def heat_level(count: int, peak: int, levels: int) -> int:
    """0 for nothing, else a level up to the highest, by the logarithm: small numbers are seen beside large ones."""
    return 0 if not count else max(1, round(levels * log1p(count) / log1p(peak)))


def heat_strip(counts: Sequence[int], peak: int) -> Text:
    """A character for each bucket, higher and hotter the more firings it has."""
    strip = Text()
    for count in counts:
        level = heat_level(count, peak, len(BLOCKS) - 1)
        strip.append(BLOCKS[level], style=HEAT[level - 1] if level else "")
    return strip


def print_forecast(found: Forecast) -> None:
    console = plain_console()
    error = f", ±{found.relative_error:.0%} at the peak" if found.relative_error else ""
    about = f" (an estimate{error})" if found.is_estimate else ""
    console.print(
        f"{found.total:,} firings of {found.counted_jobs:,} jobs from {_stamp(found.from_at)} to {_stamp(found.to_at)}"
        f" UTC{about}"
    )
    if found.uncounted_jobs:
        console.print(f"{found.uncounted_jobs:,} jobs are left out: their schedules cannot be computed.")
    if not found.peak:
        console.print("Nothing fires.")
        return
    row, name = (24, "%a %d %b") if found.bucket_seconds == 3600 else (60, "%H:%M")
    for first in range(0, len(found.counts), row):
        part = found.counts[first : first + row]
        at = found.from_at + timedelta(seconds=first * found.bucket_seconds)
        line = Text(f"{at.astimezone(UTC):{name}} ", style="dim")
        console.print(line + heat_strip(part, found.peak) + Text(f" {sum(part):>12,}", style="dim"))
    console.print(f"The highest has {found.peak:,}, at {_stamp(found.peak_at)} UTC.")
    if found.hottest:
        print_line("")
        print_rows(
            ("at (UTC)", "firings", "of", "jobs", "schedule", "zone", "jitter", "such as"),
            [
                (
                    _stamp(hot.at) if number == 0 else "",
                    f"{hot.firings:,}" if number == 0 else "",
                    f"{rule.firings:,}",
                    *_cells(rule),
                )
                for hot in found.hottest
                for number, rule in enumerate(hot.rules)
            ],
            empty="",
        )


def print_advice(advice: ForecastAdvice) -> None:
    print_line(f"{advice.text}{' (an estimate)' if advice.is_estimate else ''}")
    if advice.left_alone:
        reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in advice.left_alone.items())
        print_line(f"Left alone in the highest minute: {reasons}.")
    if advice.rules:
        print_rows(
            ("firings", "jobs", "schedule", "zone", "jitter", "such as"),
            [(f"{rule.firings:,}", *_cells(rule)) for rule in advice.rules],
            empty="",
        )


def print_smear(smear: Smear) -> None:
    if smear.status == "undone":
        kept = f"; {smear.kept:,} were edited since and stay as they are" if smear.kept else ""
        print_line(f"{smear.smear_id} is undone: {smear.undone:,} jobs have no jitter again{kept}.")
        return
    skipped = f"; {smear.skipped:,} were left alone" if smear.skipped else ""
    print_line(
        f"{smear.smear_id}: {smear.changed:,} jobs have jitter_seconds: {smear.jitter_seconds}{skipped}."
        f" `evertick forecast --undo {smear.smear_id}` takes it back."
    )


def print_smears(smears: Sequence[Smear]) -> None:
    print_rows(
        ("created (UTC)", "smear", "status", "jitter", "jobs", "changed", "skipped", "undone", "kept", "by"),
        map(
            attrgetter(
                "created_at",
                "smear_id",
                "status",
                "jitter_seconds",
                "jobs",
                "changed",
                "skipped",
                "undone",
                "kept",
                "created_by",
            ),
            smears,
        ),
        empty="No smears.",
    )


def _cells(rule: RuleShare) -> tuple[object, ...]:
    names = ", ".join(rule.job_names[:_NAMES])
    return f"{rule.jobs:,}", rule.schedule, rule.timezone, f"{rule.jitter_seconds:g}", names


def _stamp(at: object) -> str:
    return f"{at:%Y-%m-%d %H:%M}"
