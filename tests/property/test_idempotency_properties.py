import re
from datetime import UTC, datetime

from hypothesis import given, strategies as st

from evertick import tzdb
from evertick.domain.errors import InvalidInput
from evertick.domain.idempotency import (
    DEFAULT_TEMPLATE,
    KeySubject,
    Placeholder,
    Template,
    default_key,
    parse_template,
    render,
)

INSTANTS = st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001  (given its zone by the strategy)
ZONES = st.sampled_from(["UTC", "America/New_York", "Pacific/Apia", "Australia/Lord_Howe"]).map(tzdb.load)
NAMES = st.text(st.characters(), min_size=1, max_size=255)
SUBJECTS = st.builds(KeySubject, st.just("job_01"), NAMES, ZONES)
PIECES = st.sampled_from(Placeholder) | st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=9)
TEMPLATES = st.builds(Template, st.lists(PIECES, min_size=1, max_size=8).map(tuple))


@given(TEMPLATES, SUBJECTS, INSTANTS)
def test_a_key_is_always_short_visible_ascii_without_full_stops(
    template: Template, subject: KeySubject, fire_at: datetime
) -> None:
    assert re.fullmatch(r"[!-\-/-~]{1,255}", render(template, subject, fire_at))


@given(NAMES, NAMES, INSTANTS)
def test_different_names_give_different_keys(one: str, other: str, fire_at: datetime) -> None:
    keys = {render(Template((Placeholder.NAME,)), KeySubject("job_01", name, UTC), fire_at) for name in (one, other)}
    assert len(keys) == len({one, other})


@given(SUBJECTS, INSTANTS, INSTANTS)
def test_the_default_key_is_different_for_different_fire_times(
    subject: KeySubject, one: datetime, other: datetime
) -> None:
    template = parse_template(DEFAULT_TEMPLATE)
    assert (render(template, subject, one) == render(template, subject, other)) == (one == other)


@given(SUBJECTS, INSTANTS)
def test_the_default_key_is_what_its_template_renders_to(subject: KeySubject, fire_at: datetime) -> None:
    assert default_key(subject.job_id, fire_at) == render(parse_template(DEFAULT_TEMPLATE), subject, fire_at)


@given(st.text(st.sampled_from("{} \nweka_"), max_size=20) | st.text())
def test_any_text_is_a_template_or_is_refused_for_a_reason(text: str) -> None:
    faults = []
    try:
        assert parse_template(text).pieces
    except InvalidInput as refused:
        faults.append(refused.field)
    assert faults in ([], ["idempotency_key_template"])
