"""Reads what C9 compares: figures from pages of metrics, and the rows that they stand for."""

from collections import defaultdict
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from evertick.store.statements import Connection

_RESULTS = "SELECT result::text, count(*) FROM outcomes WHERE result <> 'cancelled' GROUP BY result"
_GAPS = "SELECT reason::text, sum(ticks)::bigint FROM gaps GROUP BY reason"
_NUMBERS = """
SELECT (SELECT count(*) FROM attempts) AS fired,
       (SELECT count(*) FROM outcomes
         WHERE NOT is_final AND result IN ('failed', 'timed_out', 'lost')) AS retries,
       (SELECT count(*) FROM outcomes WHERE is_final AND result IN ('failed', 'timed_out', 'lost')) AS dead,
       (SELECT count(*) FROM outcomes WHERE started_at IS NOT NULL) AS started
"""
_NAMES = {
    "evertick_fired_total": "fired",
    "evertick_fire_lag_seconds_count": "observed firings",
    "evertick_lag_seconds_count": "started",
    "evertick_outcomes_total": "outcome {result}",
    "evertick_skipped_ticks_total": "gap {reason}",
    "evertick_retries_total": "retries",
    "evertick_dead_letters_recorded_total": "dead",
}


def counted_in(pages: Iterable[str]) -> dict[str, float]:
    """The sums over all pages, by the names that `rows_of` has."""
    found: dict[str, float] = defaultdict(float)
    families = (family for page in pages for family in text_string_to_metric_families(page))
    for sample in (sample for family in families for sample in family.samples):
        if name := _NAMES.get(sample.name):
            found[name.format(**sample.labels)] += sample.value
    return {name: value for name, value in found.items() if value}


async def rows_of(connection: Connection) -> dict[str, int]:
    numbers = await connection.fetchrow(_NUMBERS)
    assert numbers is not None
    found = {**numbers, "observed firings": numbers["fired"]}
    found |= {f"outcome {result}": count for result, count in await connection.fetch(_RESULTS)}
    found |= {f"gap {reason}": count for reason, count in await connection.fetch(_GAPS)}
    return {name: count for name, count in found.items() if count}
