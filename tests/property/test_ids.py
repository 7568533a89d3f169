"""Ids survive the trip to text and back, and every other text is refused."""

from collections.abc import Callable

import pytest
from hypothesis import assume, given, strategies as st

from evertick.domain.errors import InvalidInput
from evertick.domain.ids import (
    MAX_FIRE_AT_US,
    MAX_ID,
    MAX_JOB_NUMBER,
    Prefix,
    RunKey,
    format_id,
    format_run_id,
    format_token,
    job_id_of,
    parse_id,
    parse_run_id,
    parse_token,
    partition_for,
    partition_of,
)

numbers = st.integers(0, MAX_ID)
prefixes = st.sampled_from(Prefix)
run_keys = st.builds(RunKey, numbers, st.integers(0, MAX_FIRE_AT_US))
partitions = st.integers(0, 255)
# Texts that are nearly right: one character of a good one replaced, removed or added.
edits = st.tuples(st.integers(0, 40), st.integers(0, 1), st.text("0789azAZilou_.+-\n \u0663", max_size=1))


def edited(text: str, edit: tuple[int, int, str]) -> str:
    at, removed, added = edit
    return text[:at] + added + text[at + removed :]


def parses_only_to_itself(text: str, again: Callable[[str], str]) -> bool:
    try:
        return again(text) == text
    except InvalidInput:
        return True


@given(st.integers(0, MAX_JOB_NUMBER), partitions)
def test_a_job_id_fits_a_bigint_and_tells_its_partition(number: int, partition: int) -> None:
    job_id = job_id_of(number, partition)
    assert 0 <= job_id <= MAX_ID
    assert partition_of(job_id) == partition
    assert job_id >> 8 == number


@given(numbers, numbers)
def test_jobs_of_a_tenant_one_after_the_other_are_on_different_partitions(tenant_id: int, first: int) -> None:
    assert {partition_for(tenant_id, first + number) for number in range(256)} == set(range(256))


@given(prefixes, numbers)
def test_an_id_survives_the_trip_to_text_and_back(prefix: Prefix, number: int) -> None:
    text = format_id(prefix, number)
    assert parse_id(prefix, text) == number
    assert len(text) == 17
    assert text == text.lower()


@given(run_keys)
def test_a_run_id_survives_the_trip_to_text_and_back(key: RunKey) -> None:
    text = format_run_id(*key)
    assert parse_run_id(text) == key
    assert len(text) == 30


@given(st.lists(numbers))
def test_texts_of_ids_sort_as_their_numbers(ids: list[int]) -> None:
    texts = [format_id(Prefix.JOB, number) for number in ids]
    assert sorted(texts) == [format_id(Prefix.JOB, number) for number in sorted(ids)]


@given(st.lists(run_keys))
def test_texts_of_runs_sort_by_job_and_then_by_fire_time(keys: list[RunKey]) -> None:
    assert sorted(format_run_id(*key) for key in keys) == [format_run_id(*key) for key in sorted(keys)]


@given(prefixes, prefixes, numbers)
def test_an_id_of_one_kind_is_never_read_as_another(one: Prefix, other: Prefix, number: int) -> None:
    assume(one != other)
    with pytest.raises(InvalidInput, match=other.field):
        parse_id(other, format_id(one, number))


@given(numbers, edits)
def test_no_second_text_means_the_same_id(number: int, edit: tuple[int, int, str]) -> None:
    text = edited(format_id(Prefix.JOB, number), edit)
    assert parses_only_to_itself(text, lambda text: format_id(Prefix.JOB, parse_id(Prefix.JOB, text)))


@given(run_keys, edits)
def test_no_second_text_means_the_same_run(key: RunKey, edit: tuple[int, int, str]) -> None:
    text = edited(format_run_id(*key), edit)
    assert parses_only_to_itself(text, lambda text: format_run_id(*parse_run_id(text)))


@given(numbers, numbers, edits)
def test_no_second_text_means_the_same_token(lane_id: int, seq: int, edit: tuple[int, int, str]) -> None:
    text = format_token(lane_id, seq)
    assert parse_token(text) == (lane_id, seq)
    assert parses_only_to_itself(edited(text, edit), lambda text: format_token(*parse_token(text)))


@given(st.text())
def test_any_text_is_either_parsed_or_refused_as_invalid_input(text: str) -> None:
    assert parses_only_to_itself(text, lambda text: format_id(Prefix.JOB, parse_id(Prefix.JOB, text)))
    assert parses_only_to_itself(text, lambda text: format_run_id(*parse_run_id(text)))
    assert parses_only_to_itself(text, lambda text: format_token(*parse_token(text)))
