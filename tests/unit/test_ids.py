"""Ids, their public texts, fencing tokens and seq."""

from collections import Counter

import pytest

from evertick.domain.errors import InvalidInput
from evertick.domain.ids import (
    MAX_FIRE_AT_US,
    MAX_ID,
    MAX_JOB_NUMBER,
    FencingToken,
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
    run_id_of,
)


def test_a_job_id_carries_its_partition_in_the_low_eight_bits() -> None:
    assert job_id_of(1, 0) == 256
    assert job_id_of(2, 255) == 767
    assert partition_of(767) == 255
    assert job_id_of(MAX_JOB_NUMBER, 255) == MAX_ID


@pytest.mark.parametrize(("number", "partition"), [(-1, 0), (MAX_JOB_NUMBER + 1, 0), (1, -1), (1, 256)])
def test_a_job_id_that_fits_no_bigint_is_refused(number: int, partition: int) -> None:
    with pytest.raises(InvalidInput):
        job_id_of(number, partition)


def test_partitions_of_tenants_never_change_between_releases() -> None:
    assert [partition_for(tenant, 0) for tenant in range(1, 9)] == [145, 151, 29, 110, 99, 189, 99, 158]
    assert [partition_for(7, number) for number in (0, 1, 2, 3, 255, 256)] == [99, 46, 249, 196, 152, 99]


def test_a_tenant_lives_on_all_partitions_evenly() -> None:
    assert set(Counter(partition_for(42, number) for number in range(2560)).values()) == {10}


def test_first_jobs_of_many_tenants_spread_over_all_partitions() -> None:
    load = Counter(partition_for(tenant, 0) for tenant in range(25_600))
    assert len(load) == 256
    assert max(load.values()) < 150


@pytest.mark.parametrize(
    ("prefix", "number", "text"),
    [
        (Prefix.JOB, 0, "job_0000000000000"),
        (Prefix.JOB, 1, "job_0000000000001"),
        (Prefix.TENANT, 123_456_789, "ten_00000003nqk8n"),
        (Prefix.JOB, MAX_ID, "job_7zzzzzzzzzzzz"),
    ],
)
def test_public_ids_never_change_between_releases(prefix: Prefix, number: int, text: str) -> None:
    assert format_id(prefix, number) == text
    assert parse_id(prefix, text) == number


@pytest.mark.parametrize("number", [-1, MAX_ID + 1])
def test_a_number_that_is_no_id_has_no_text(number: int) -> None:
    with pytest.raises(InvalidInput, match="job_id"):
        format_id(Prefix.JOB, number)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must start with job_"),
        ("run_0000000000001", "must start with job_"),
        ("JOB_0000000000001", "must start with job_"),
        ("0000000000001", "must start with job_"),
        ("job_", "must have 13 characters"),
        ("job_000000000001", "must have 13 characters"),
        ("job_00000000000001", "must have 13 characters"),
        ("job_0000000000001\n", "must have 13 characters"),
        ("job_000000000000A", "may only use"),
        ("job_000000000000i", "may only use"),
        ("job_000000000000l", "may only use"),
        ("job_000000000000o", "may only use"),
        ("job_000000000000u", "may only use"),
        ("job_000000000000-", "may only use"),
        ("job_+000000000001", "may only use"),
        ("job_00000_0000001", "may only use"),
        ("job_000000000001 ", "may only use"),
        ("job_000000000000\u0661", "may only use"),
        ("job_8000000000000", "larger than any id"),
        ("job_zzzzzzzzzzzzz", "larger than any id"),
    ],
)
def test_a_text_that_is_no_job_id_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as refused:
        parse_id(Prefix.JOB, text)
    assert refused.value.field == "job_id"


def test_a_refused_api_key_id_names_its_own_field() -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_id(Prefix.API_KEY, "key")
    assert refused.value.field == "api_key_id"


def test_a_run_id_is_the_same_from_the_number_of_its_job_and_from_its_text() -> None:
    for job_id, fire_at_us in ((4096, 1_781_532_000_000_001), (MAX_ID, 0), (0, MAX_FIRE_AT_US)):
        assert run_id_of(format_id(Prefix.JOB, job_id), fire_at_us) == format_run_id(job_id, fire_at_us)


def test_a_run_id_says_its_job_and_fire_time() -> None:
    text = format_run_id(31_604_743, 1_781_532_000_000_001)
    assert text == "run_00000000y4g07001jm9cz08601"
    assert parse_run_id(text) == RunKey(31_604_743, 1_781_532_000_000_001)


@pytest.mark.parametrize(("job_id", "fire_at_us"), [(-1, 0), (MAX_ID + 1, 0), (1, -1), (1, MAX_FIRE_AT_US + 1)])
def test_a_run_outside_the_years_1970_to_9999_has_no_id(job_id: int, fire_at_us: int) -> None:
    with pytest.raises(InvalidInput):
        format_run_id(job_id, fire_at_us)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("job_0000000000001", "must start with run_"),
        ("run_0000000000001", "must have 26 characters"),
        ("run_00000000000010000000000000u", "must have 26 characters"),
        ("run_0000000000001000000000000u", "may only use"),
        ("run_80000000000000000000000000", "larger than any id"),
        ("run_00000000000008000000000000", "larger than any id"),
        ("run_00000000000007zzzzzzzzzzzz", "beyond the year 9999"),
    ],
)
def test_a_text_that_is_no_run_id_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as refused:
        parse_run_id(text)
    assert refused.value.field == "run_id"


def test_a_fencing_token_joins_lane_and_seq() -> None:
    assert format_token(412, 1_781_532_000_000_001) == "412.1781532000000001"
    assert parse_token("412.1781532000000001") == FencingToken(412, 1_781_532_000_000_001)


@pytest.mark.parametrize(("lane_id", "seq"), [(-1, 0), (0, -1), (MAX_ID + 1, 0), (0, MAX_ID + 1)])
def test_numbers_that_fit_no_bigint_make_no_token(lane_id: int, seq: int) -> None:
    with pytest.raises(InvalidInput):
        format_token(lane_id, seq)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "412",
        "412.",
        ".1",
        "1.2.3",
        "01.2",
        "1.02",
        "+1.2",
        "-1.2",
        "1.2 ",
        "1.2\n",
        "1_0.2",
        "1.\u0662",
        "9223372036854775808.1",
        "1.9223372036854775808",
        "1.99999999999999999999",
    ],
)
def test_a_text_that_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="token"):
        parse_token(text)
