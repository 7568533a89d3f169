"""What a dispatcher records, and what follows, for each way in which a delivery can end."""

import asyncio
import json
import logging
from datetime import timedelta
from itertools import pairwise

import pytest
from aiohttp import web

from engine import Job, until
from evertick.domain.ids import MAX_ID, Prefix, format_id
from evertick.store.tenants import audit
from evertick.targets import hosts
from evertick.targets.egress.guard import EgressPolicy
from evertick.targets.hosts import BACKED_OFF
from evertick.targets.http.delivery import NO_SLOT, DeliverySettings
from roles.dispatching import PostOffice, Receiver, receiving


async def hang() -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def status_of(office: PostOffice, job: Job) -> tuple[str, str | None, bool]:
    """A job's status, why it is paused, and whether its next tick will ever be due."""
    row = await office.connection.fetchrow(
        "SELECT status::text, pause_reason, due_at < 'infinity' FROM jobs JOIN timers USING (job_id)"
        " WHERE job_id = $1 AND kind = 'tick'",
        job.job_id,
    )
    assert row is not None
    return tuple(row)


async def test_a_success_is_recorded_with_its_code_and_the_beginning_of_the_answer(
    office: PostOffice, receiver: Receiver
) -> None:
    receiver.will_answer(202, "queued as 17")
    job = await office.posted(receiver.url, payload={"report": "weekly"})
    dispatcher = await office.deliver()
    outcome = await office.outcome(job)
    assert (outcome.result, outcome.is_final, outcome.error, outcome.excerpt) == ("success", True, None, "queued as 17")
    assert await office.code(job) == 202
    assert (await office.leases(), dispatcher.counters.succeeded) == (0, 1)
    (received,) = receiver.received
    assert json.loads(received.body) == {"report": "weekly"}
    assert received.headers["x-team"] == "billing"
    assert received.headers["evertick-job-name"] == f"job%20{job.job_id}"


async def test_a_failure_is_retried_with_the_same_key_and_a_larger_token(
    office: PostOffice, receiver: Receiver
) -> None:
    receiver.will_answer(500, "oh no")
    job = await office.posted(receiver.url)
    await office.deliver()
    failed = await office.outcome(job)
    assert (failed.result, failed.error, failed.excerpt) == ("failed", "answered 500 Internal Server Error", "oh no")
    assert (failed.is_final, await office.code(job)) == (False, 500)
    await office.fire_retry(job)
    await office.deliver()
    assert await office.results(job) == ["failed", "success"]
    first, second = (each.headers for each in receiver.received)
    for name in ("idempotency-key", "webhook-id", "evertick-run-id", "ce-id"):
        assert first[name] == second[name]
    assert (first["evertick-attempt"], second["evertick-attempt"]) == ("1", "2")
    tokens = [int(each["evertick-fencing-token"]) for each in (first, second)]
    assert tokens[0] < tokens[1]


async def test_a_404_is_a_dead_letter_at_once(office: PostOffice, receiver: Receiver) -> None:
    receiver.will_answer(404)
    job = await office.posted(receiver.url)
    await office.deliver()
    assert await office.results(job) == ["failed"]
    assert await office.dead_letters(job) == [(1, "not_retryable")]
    assert await office.retries(job) == []
    assert (await status_of(office, job))[0] == "active"


async def test_a_410_pauses_the_job(office: PostOffice, receiver: Receiver) -> None:
    receiver.will_answer(410)
    job = await office.posted(receiver.url)
    dispatcher = office.dispatcher()
    await dispatcher.start()

    async def is_paused() -> bool:
        return await status_of(office, job) == ("paused", "its target answered 410 Gone", False)

    await until(is_paused)
    await dispatcher.stop()
    assert await office.dead_letters(job) == [(1, "not_retryable")]
    (change,) = await audit.page(office.connection, 1, before=MAX_ID, most=9)
    assert change[2:] == ("dispatcher", "pause_job", format_id(Prefix.JOB, job.job_id), None)


async def test_a_pause_that_cannot_be_noted_is_not_made(office: PostOffice, receiver: Receiver) -> None:
    receiver.will_answer(410)
    job = await office.posted(receiver.url)
    await office.connection.execute("ALTER TABLE audit_log RENAME TO audit_log_away")
    dispatcher = office.dispatcher()
    await dispatcher.start()

    async def has_failed() -> bool:
        return bool(dispatcher.pausing.errors)

    await until(has_failed)
    assert (await status_of(office, job))[0] == "active"
    await office.connection.execute("ALTER TABLE audit_log_away RENAME TO audit_log")

    async def is_paused() -> bool:
        return (await status_of(office, job))[0] == "paused"

    await until(is_paused)
    await dispatcher.stop()
    assert len(await audit.page(office.connection, 1, before=MAX_ID, most=9)) == 1


async def test_a_410_right_before_the_stop_pauses_the_job(office: PostOffice, receiver: Receiver) -> None:
    receiver.will_answer(410)
    job = await office.posted(receiver.url)
    await office.deliver()  # without the loops
    assert (await status_of(office, job))[0] == "paused"


async def test_a_410_does_not_pause_a_job_that_was_edited_since(office: PostOffice, receiver: Receiver) -> None:
    edited = await office.posted(receiver.url)
    await office.edit(edited)
    other = await office.posted(receiver.url)
    receiver.will_answer(410)
    receiver.will_answer(410)
    dispatcher = office.dispatcher(concurrency=1)  # so that they are paused in their order
    await dispatcher.start()

    async def other_is_paused() -> bool:
        return (await status_of(office, other))[0] == "paused"

    await until(other_is_paused)
    await dispatcher.stop()
    assert await status_of(office, edited) == ("active", None, True)


async def test_a_retry_waits_for_as_long_as_the_target_asks(office: PostOffice, receiver: Receiver) -> None:
    receiver.will_answer(503, Retry_After="120")
    job = await office.posted(receiver.url)
    await office.deliver()
    ((attempt, due_in),) = await office.retries(job)
    assert attempt == 2
    assert 110 < due_in <= 132  # up to a tenth more, so that not all come back at once


async def test_a_target_that_does_not_answer_in_time_is_a_timeout(office: PostOffice, receiver: Receiver) -> None:
    receiver.will(hang)
    job = await office.posted(receiver.url, timeout_seconds=1)
    await office.deliver()
    outcome = await office.outcome(job)
    assert (outcome.result, outcome.error) == ("timed_out", "no complete answer within 1 s")
    assert [attempt for attempt, _ in await office.retries(job)] == [2]


@pytest.mark.parametrize(
    ("url", "policy", "words"),
    [
        ("https://169.254.169.254/latest", EgressPolicy(), "not public"),
        ("https://127.0.0.1:8443/hook", EgressPolicy(), "not public"),
        ("http://example.com/hook", EgressPolicy(), "plain http is not allowed"),
    ],
)
async def test_a_refused_target_is_a_dead_letter_that_says_why(
    office: PostOffice, url: str, policy: EgressPolicy, words: str
) -> None:
    job = await office.posted(url)
    await office.deliver(policy)
    outcome = await office.outcome(job)
    assert outcome.result == "failed"
    assert outcome.error is not None
    assert outcome.error.startswith("not called: ")
    assert words in outcome.error
    assert await office.dead_letters(job) == [(1, "not_retryable")]


async def test_a_target_that_cannot_be_read_is_a_dead_letter(office: PostOffice, receiver: Receiver) -> None:
    job = await office.posted(receiver.url)
    await office.connection.execute("UPDATE job_versions SET spec = '{}' WHERE job_id = $1", job.job_id)
    await office.deliver()
    assert await office.dead_letters(job) == [(1, "not_retryable")]
    assert receiver.received == []


async def test_what_finds_its_host_busy_comes_again_without_counting_as_a_try(
    office: PostOffice, receiver: Receiver
) -> None:
    receiver.will(hang)
    job = await office.posted(receiver.url, timeout_seconds=1, count=2)
    await office.deliver(settings=DeliverySettings(per_host=1, host_wait_seconds=0.1))
    assert await office.results(job) == ["timed_out"]
    assert [attempt for attempt, _ in await office.retries(job)] == [2]
    ((wait, deferrals),) = await office.put_back()
    assert 0 < wait <= 7.5
    assert deferrals == 1
    assert len(receiver.received) == 1


async def test_a_host_that_hangs_does_not_keep_its_neighbours_waiting(
    office: PostOffice, receiver: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "evertick.dispatcher")
    monkeypatch.setattr(hosts, "BACKOFF_SECONDS", 600.0)  # on a machine of any speed
    receiver.will(hang)
    hanging = await office.posted(receiver.url, timeout_seconds=300, count=12)
    async with receiving() as neighbour:
        job = await office.posted(neighbour.url)
        dispatcher = office.dispatcher(concurrency=2, settings=DeliverySettings(per_host=1, host_wait_seconds=0.1))
        await dispatcher.start()
        assert [outcome.result for outcome in await office.until_ended(job)] == ["success"]
        assert await office.results(hanging) == [], "it hangs still"
        await dispatcher.stop(timedelta(0))
    assert len(receiver.received) == 1
    # One waited for the slot that the first one keeps; the other ten did not wait.
    texts = [record.args[2] for record in caplog.records if isinstance(record.args, tuple) and len(record.args) == 3]
    assert texts[:11] == [NO_SLOT, *[BACKED_OFF] * 10]


async def test_runs_to_a_host_that_hangs_wait_longer_each_time_and_leave_nothing_behind(
    office: PostOffice, receiver: Receiver
) -> None:
    receiver.will(hang)
    job = await office.posted(receiver.url, timeout_seconds=300, count=200)
    await office.keep_put_back()
    dispatcher = office.dispatcher(settings=DeliverySettings(per_host=1, host_wait_seconds=0.1))
    await dispatcher.start()
    longest = []
    for turn in range(1, 9):

        async def were_all_put_back(turn: int = turn) -> bool:
            return [deferrals for _, deferrals in await office.put_back()] == [turn] * 199

        await until(were_all_put_back)
        longest.append(max(wait for wait, _ in await office.put_back()))
        await office.let_return()
    await dispatcher.stop(timedelta(0))
    assert all(early < late for early, late in pairwise(longest[:6]))
    assert 200 < longest[-1] <= 300
    # One was begun, and its dispatcher stopped: that one has an outcome.
    assert await office.results(job) == ["deferred"]
    assert await office.connection.fetchval("SELECT count(*) FROM attempts") == 200
    assert await office.connection.fetchval("SELECT count(*) FROM leases") == 199
    assert len(await office.retries(job)) == 1
