"""What is recorded of results that cannot be kept: what was done is not done again."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from evertick.domain.attempt import SUCCEEDED, Succeeded
from evertick.executor.handlers.run import succeeded, unstorable
from evertick.executor.running import Running

AT = datetime(2026, 6, 9, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("raw", "excerpt"),
    [
        (b"not JSON", "not JSON"),
        (b'"\xff"', '""'),
        (b"\xff", ""),
        (b"[" * 2000 + b"]" * 2000, "[" * 1024),
        (b'{"a": 1} {', '{"a": 1} {'),
    ],
)
def test_of_what_is_no_json_the_beginning_is_kept(raw: bytes, excerpt: str) -> None:
    assert succeeded(msgspec.Raw(raw), "handle") == Succeeded(excerpt)
    inside = succeeded({"in": msgspec.Raw(raw)}, "handle")
    assert inside.output is None


def test_json_that_was_written_before_is_kept_as_it_is() -> None:
    assert succeeded(msgspec.Raw(b'{"a": "\xe2\x82\xac"}'), "handle") == Succeeded(output='{"a": "\N{EURO SIGN}"}')


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(3)])
def test_a_result_that_cannot_be_looked_at_is_a_success_without_it(error: BaseException) -> None:
    def outcome_of(_: Any) -> Any:
        raise error

    attempt: Any = SimpleNamespace(
        name="job", job_id=256, fire_at=AT, attempt=1, handler="handle", tenant_id=0, token=(1, 1), trace_parent=None
    )
    handler: Any = SimpleNamespace(outcome_of=outcome_of)
    assert Running(attempt, handler, AT).outcome("done", None) == SUCCEEDED


def test_a_success_that_cannot_be_stored_stays_one() -> None:
    told = unstorable(Succeeded(output="1"), ValueError("no field output"))
    assert told == Succeeded("what it returned could not be stored: no field output")
    plain = unstorable(told, ValueError("no field excerpt"))
    assert plain == SUCCEEDED
    assert unstorable(plain, ValueError("odd")) == SUCCEEDED
    assert unstorable(Succeeded("ok", 204), ValueError("odd")) == Succeeded(None, 204)
