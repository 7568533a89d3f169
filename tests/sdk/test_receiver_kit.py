"""The receiver kit: what Evertick sent is recognised, once, and nothing else is."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from evertick.domain.errors import InvalidInput
from evertick.domain.ids import Prefix, format_id, format_run_id
from evertick.sdk.webhooks import (
    AlreadyHandled,
    InvalidSignature,
    ReceivedRun,
    Receiver,
    ReceiverError,
    RecentMemory,
    StaleTimestamp,
    StaleToken,
    Unreadable,
)
from evertick.targets.http.request import DeliveryRequest, headers_of
from evertick.targets.http.signing import RUN_HEADERS, RUN_SIGNATURE, Secret, run_message, sign_message
from targets.receivers import ATTEMPT, NOW, SECRET

JOB = 4096
SENT = replace(
    ATTEMPT,
    run_id=format_run_id(JOB, 1_780_923_600_000_000),
    job_id=format_id(Prefix.JOB, JOB),
    job_name="Bericht für 東京",
)


def receiver(*secrets: Secret, **options: Any) -> Receiver:
    return Receiver([each.text for each in secrets or (SECRET,)], now=NOW.timestamp, **options)


def verify(
    by: Receiver, sent: DeliveryRequest, changed: Mapping[str, str] | None = None, *, late: timedelta = timedelta(0)
) -> ReceivedRun:
    """Let a receiver see what was sent; an error of the kit says why it must not act on it."""
    return by.verify({**headers_of(sent, NOW - late), **(changed or {})}, sent.body)


def later(seq: int, **changes: Any) -> DeliveryRequest:
    return replace(SENT, fencing_token=seq, **changes)


def test_a_delivery_is_told_in_full() -> None:
    assert verify(receiver(), SENT) == ReceivedRun(
        run_id=SENT.run_id,
        job_id=SENT.job_id,
        job_name="Bericht für 東京",
        scheduled_at=SENT.scheduled_at,
        attempt=1,
        reason="tick",
        idempotency_key="report-2026-W24",
        fencing_token=1781532000000001,
        payload={"report_type": "weekly"},
    )


def test_headers_may_come_in_any_case_or_as_asgi_has_them() -> None:
    headers = headers_of(SENT, NOW)
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    receiver().verify({name.upper(): value for name, value in headers.items()}, SENT.body)
    receiver().verify(pairs, SENT.body)


def test_an_empty_body_is_no_payload() -> None:
    assert verify(receiver(), replace(SENT, body=b"")).payload is None


def test_either_secret_counts_during_a_rotation() -> None:
    new = Secret.generate()
    both = replace(SENT, secrets=(new, SECRET))
    verify(receiver(new), both)
    verify(receiver(SECRET), both)
    verify(receiver(new, SECRET), SENT)
    with pytest.raises(InvalidSignature):
        verify(receiver(Secret.generate()), both)


@pytest.mark.parametrize(
    "headers",
    [
        {"webhook-signature": ""},
        {"webhook-signature": "v1,AAAA"},
        {"webhook-id": "report-2026-W25"},
        {"webhook-id": ""},
        {"webhook-timestamp": ""},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "1780923606"},
        {"webhook-timestamp": "01780923605"},
        {"webhook-timestamp": " 1780923605"},
        {"webhook-timestamp": "178092360\uff15"},
        {"webhook-timestamp": "9" * 5000},
    ],
)
def test_what_was_changed_is_not_signed(headers: Mapping[str, str]) -> None:
    with pytest.raises(InvalidSignature):
        verify(receiver(), SENT, headers)


def test_a_changed_body_is_not_signed() -> None:
    with pytest.raises(InvalidSignature):
        receiver().verify(headers_of(SENT, NOW), SENT.body + b" ")


@pytest.mark.parametrize("late", [timedelta(minutes=5), timedelta(minutes=-5)])
def test_the_time_of_signing_must_be_near(late: timedelta) -> None:
    verify(receiver(), SENT, late=late)
    with pytest.raises(StaleTimestamp):
        verify(receiver(), SENT, late=late * 1.01)
    with pytest.raises(StaleTimestamp):
        verify(receiver(tolerance=timedelta(minutes=1)), SENT, late=late)


def test_a_run_that_is_done_is_not_done_again() -> None:
    kit = receiver()
    run = verify(kit, SENT)
    verify(kit, later(1781532000000002, attempt=2))  # nothing was done yet: the retry must act
    kit.done(run)
    with pytest.raises(AlreadyHandled):
        verify(kit, later(1781532000000003, attempt=3))
    verify(kit, later(1781532000000004, idempotency_key="report-2026-W25"))


def test_a_delivery_that_is_sent_twice_before_it_is_done_is_not_done_twice() -> None:
    kit = receiver()
    verify(kit, later(10))
    with pytest.raises(StaleToken):
        verify(kit, later(10))
    verify(kit, later(11, attempt=2))  # the first may have failed: the retry must act


@pytest.mark.parametrize("name", RUN_HEADERS)
def test_a_captured_delivery_with_a_changed_header_is_refused_and_later_ones_pass(name: str) -> None:
    told = {"job_name": "other", "scheduled_at": NOW, "attempt": 9, "reason": "manual"}
    other = later(9_000_000_000_000_000_000, run_id=format_run_id(JOB + 1, 1), **told)
    kit = receiver()
    verify(kit, SENT)
    with pytest.raises(InvalidSignature):
        verify(kit, SENT, {name: headers_of(other, NOW)[name]})
    verify(kit, later(1781532000000002, attempt=2))


def test_a_delivery_with_the_signed_headers_of_another_run_is_refused() -> None:
    other = headers_of(later(9_000_000_000_000_000_000, body=b"{}"), NOW)
    with pytest.raises(InvalidSignature):
        verify(receiver(), SENT, {name: other[name] for name in (*RUN_HEADERS, RUN_SIGNATURE)})


def test_an_attempt_that_a_later_one_overtook_is_stale() -> None:
    kit = receiver()
    verify(kit, later(10))
    with pytest.raises(StaleToken):
        verify(kit, later(9))
    verify(kit, later(100))  # as numbers, not as texts
    with pytest.raises(StaleToken):
        verify(kit, later(10))


def test_the_fence_is_by_job_or_by_run() -> None:
    next_run = later(9, run_id=format_run_id(JOB, 1_780_923_700_000_000), idempotency_key="next")
    other_job = later(9, run_id=format_run_id(JOB + 1, 1), idempotency_key="other")
    by_job, by_run = receiver(), receiver(fence="run")
    verify(by_job, later(10))
    verify(by_run, later(10))
    with pytest.raises(StaleToken):
        verify(by_job, next_run)
    verify(by_job, other_job)
    verify(by_run, next_run)


@pytest.mark.parametrize(
    "headers",
    [
        {"Idempotency-Key": "another"},
        {"Evertick-Run-Id": "run_1"},
        {"Evertick-Attempt": "x"},
        {"Evertick-Attempt": "1" * 5000},
        {"Evertick-Scheduled-At": "today"},
        {"Evertick-Fencing-Token": "412.1781532000000001"},
        {"Evertick-Fencing-Token": "0"},
        {"Evertick-Fencing-Token": "-1"},
        {"Evertick-Fencing-Token": "\uff15"},
        {"Evertick-Fencing-Token": str(2**63)},
    ],
)
def test_a_signed_message_must_still_be_a_run(headers: Mapping[str, str]) -> None:
    changed = {**headers_of(SENT, NOW), **headers}
    message = run_message(changed["webhook-signature"], changed)
    with pytest.raises(Unreadable):
        verify(receiver(), SENT, {**headers, "Evertick-Signature": sign_message([SECRET], message)})


@pytest.mark.parametrize("name", [*RUN_HEADERS, RUN_SIGNATURE])
def test_a_header_that_was_taken_away_is_named(name: str) -> None:
    headers = headers_of(SENT, NOW)
    del headers[name]
    with pytest.raises(Unreadable, match=name):
        receiver().verify(headers, SENT.body)


def test_an_unsigned_message_changes_nothing_in_the_memory() -> None:
    kit = receiver()
    with pytest.raises(InvalidSignature):
        verify(kit, later(99), {"webhook-signature": "v1,AAAA"})
    verify(kit, later(1))


def test_each_error_names_the_answer_that_makes_evertick_do_the_right_thing() -> None:
    statuses = {kind.__name__: kind.status for kind in ReceiverError.__subclasses__()}
    assert statuses == {
        "InvalidSignature": 401,
        "StaleTimestamp": 408,
        "Unreadable": 400,
        "AlreadyHandled": 200,
        "StaleToken": 409,
    }


def test_a_receiver_needs_secrets() -> None:
    with pytest.raises(InvalidInput):
        Receiver([])
    with pytest.raises(InvalidInput):
        Receiver(["secret"])


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    memory = RecentMemory(most=2)
    for number in range(3):
        memory.set_done(f"key-{number}")
        assert memory.advance(f"job-{number}", 5)
    assert [memory.is_done(f"key-{number}") for number in range(3)] == [False, True, True]
    assert [memory.advance(f"job-{number}", 5) for number in (2, 1, 0)] == [False, False, True]
