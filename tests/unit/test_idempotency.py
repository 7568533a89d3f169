import re
from datetime import UTC, datetime, timedelta

import pytest

from evertick import tzdb
from evertick.domain.errors import InvalidInput
from evertick.domain.idempotency import (
    DEFAULT_TEMPLATE,
    KeySubject,
    Placeholder,
    Template,
    parse_template,
    render,
)

NEW_YORK = tzdb.load("America/New_York")
FIRE_AT = datetime(2026, 6, 9, 1, 30, tzinfo=UTC)  # still the evening of the 8th in New York
SUBJECT = KeySubject("job_01", "weekly report", NEW_YORK)


def rendered(text: str, fire_at: datetime = FIRE_AT, subject: KeySubject = SUBJECT) -> str:
    return render(parse_template(text), subject, fire_at)


def test_every_placeholder_has_a_value() -> None:
    for placeholder in Placeholder:
        assert rendered(f"{{{{{placeholder.value}}}}}")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("{{job_id}}", "job_01"),
        ("{{name}}", "weekly%20report"),
        ("{{fire_at}}", "2026-06-09T01:30:00Z"),
        ("{{fire_at_unix}}", "1780968600"),
        ("{{date}}", "2026-06-08"),
        ("{{week}}", "2026-W24"),
        ("{{month}}", "2026-06"),
        ("{{year}}", "2026"),
        ("report-{{ week }}/{{  year}}", "report-2026-W24/2026"),
        ("constant", "constant"),
        (DEFAULT_TEMPLATE, "job_01:1780968600"),
    ],
)
def test_placeholders_take_the_values_of_the_run(text: str, key: str) -> None:
    assert rendered(text) == key


def test_the_week_at_new_year_carries_the_year_of_iso_8601() -> None:
    new_year = datetime(2027, 1, 1, 12, tzinfo=UTC)
    assert rendered("{{week}} {{year}}", new_year) == "2026-W53%202027"


def test_a_manual_run_within_the_second_of_a_tick_has_another_key() -> None:
    manual = FIRE_AT + timedelta(microseconds=250_000)
    assert rendered(DEFAULT_TEMPLATE, manual) == "job_01:1780968600_250000"


def test_a_fire_time_in_another_zone_gives_the_same_key() -> None:
    assert rendered("{{fire_at}} {{fire_at_unix}}", FIRE_AT.astimezone(NEW_YORK)) == rendered(
        "{{fire_at}} {{fire_at_unix}}"
    )


def test_a_fire_time_without_zone_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="zone"):
        rendered("{{date}}", datetime(2026, 6, 9, 1, 30))  # noqa: DTZ001  (that is the mistake)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Grüße", "Gr%C3%BC%C3%9Fe"),
        ("a\r\nX-Evil: 1", "a%0D%0AX-Evil:%201"),
        ("billing.daily", "billing%2Edaily"),  # a full stop separates the parts of a webhook's signature
        ("50%", "50%25"),
        ("\ud800", "%ED%A0%80"),
    ],
)
def test_whatever_a_job_is_called_its_key_is_safe_in_a_header(name: str, key: str) -> None:
    assert rendered("{{name}}", subject=KeySubject("job_01", name, UTC)) == key


def test_a_long_key_ends_in_a_hash_of_the_whole() -> None:
    one, other = (rendered("{{name}}", subject=KeySubject("job_01", "ü" * 254 + end, UTC)) for end in "ab")
    assert len(one) == len(other) == 255
    assert re.fullmatch(r"(%C3%BC)+[%C3B]*~[0-9a-f]{32}", one)
    assert one != other


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "1 to 255 characters"),
        ("x" * 256, "1 to 255 characters"),
        ("a\nb", "control characters"),
        ("a\x7fb", "control characters"),
        ("{{weak}}", "unknown placeholder 'weak': did you mean week?"),
        ("{{WEEK}}", "did you mean week?"),
        ("{{ fire at }}", "did you mean fire_at?"),
        ("{{tenant}}", "known are job_id, name, fire_at"),
        ("{{}}", "unknown placeholder ''"),
        ("{{week", "stray '{'"),
        ("week}}", "stray '}'"),
        ("{week}", "stray '{': a placeholder is written {{week}}"),
        ("{{{week}}}", "stray '{'"),
        ("{{ {{week}} }}", "stray '{'"),
    ],
)
def test_a_wrong_template_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_template(text)
    assert refused.value.field == "idempotency_key_template"
    assert reason in refused.value.reason


def test_a_template_is_split_into_literals_and_placeholders() -> None:
    assert parse_template("a-{{week}}") == Template(("a-", Placeholder.WEEK))
