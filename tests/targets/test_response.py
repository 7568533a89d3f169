"""What a target's answer means."""

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from evertick.domain.attempt import Failed, Succeeded
from evertick.domain.states import Outcome
from evertick.targets.http.response import TargetResponse, excerpt_of, outcome_of
from targets.receivers import NOW


def failed(status: int, headers: dict[str, str] | None = None) -> Failed:
    outcome = outcome_of(TargetResponse(status, headers or {}, b"why"), NOW)
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.excerpt, outcome.result) == (status, "why", Outcome.FAILED)
    return outcome


@pytest.mark.parametrize("status", [200, 201, 202, 204, 226, 299])
def test_2xx_is_success(status: int) -> None:
    assert outcome_of(TargetResponse(status, {}, b"ok"), NOW) == Succeeded("ok", status)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308, 399])
def test_3xx_is_failure_for_good(status: int) -> None:
    assert not failed(status).retryable
    assert "redirects are not followed" in failed(status).error


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 413, 415, 422, 451, 499])
def test_other_4xx_are_not_tried_again(status: int) -> None:
    assert not failed(status).retryable
    assert failed(status).is_target_gone == (status == 410)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 501, 502, 503, 504, 511, 599, 101, 600, 999])
def test_these_are_tried_again(status: int) -> None:
    assert failed(status).retryable
    assert not failed(status).is_target_gone


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("120", timedelta(minutes=2)),
        ("Mon, 08 Jun 2026 13:01:05 GMT", timedelta(minutes=1)),
        ("Mon, 08 Jun 2020 13:01:05 GMT", timedelta(0)),
        ("soon", None),
    ],
)
def test_a_target_may_say_when(status: int, value: str, wait: timedelta | None) -> None:
    assert failed(status, {"Retry-After": value}).wait == wait


@pytest.mark.parametrize("status", [400, 500, 502])
def test_on_other_answers_retry_after_says_nothing(status: int) -> None:
    assert failed(status, {"Retry-After": "120"}).wait is None


def test_the_error_names_the_status() -> None:
    assert failed(404).error == "answered 404 Not Found"
    assert failed(599).error == "answered 599"


@given(st.binary(max_size=3000))
def test_an_excerpt_is_always_text_that_can_be_stored(body: bytes) -> None:
    excerpt = excerpt_of(body)
    assert "\x00" not in excerpt
    assert len(excerpt.encode("utf-8")) <= 1024


def test_an_excerpt_is_the_beginning() -> None:
    assert excerpt_of("é".encode() * 600) == "é" * 512
    assert excerpt_of(b"a\x00b\xff") == "a\ufffdb\ufffd"
