"""What becomes of an attempt, by what its handler does."""

import asyncio
import contextvars
import logging
from datetime import timedelta

import pytest

from engine import AT
from evertick.domain.ids import format_run_id, parse_token
from evertick.domain.schedule.instants import to_us
from evertick.executor.handlers.run import DoNotRetry, RetryLater, Run
from roles.workshop import Workshop

ONE_TRY = '{"max_retries": 0, "backoff": "fixed", "delay_seconds": 10, "max_delay_seconds": 10}'


async def test_a_handler_that_returns_is_a_success(workshop: Workshop) -> None:
    async def handle(run: Run) -> dict[str, int]:
        return {"sent": 3}

    job = await workshop.ready()
    worker = await workshop.work_off({"handle": handle})
    assert await workshop.outcomes(job) == [(1, "success", True, None, '{"sent":3}')]
    assert (worker.counters.leased, worker.counters.executed, await workshop.leases()) == (1, 1, 0)


async def test_a_handler_that_is_not_async_runs_in_a_thread(workshop: Workshop) -> None:
    loop = asyncio.get_running_loop()

    def handle(run: Run) -> bool:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return loop.is_running()

    job = await workshop.ready(count=40)
    await workshop.work_off({"handle": handle}, threads=3)
    assert [(each.result, each.excerpt) for each in await workshop.outcomes(job)] == [("success", "true")] * 40


async def test_a_run_tells_what_a_handler_needs_to_know(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Run] = []

    async def handle(run: Run) -> None:
        seen.append(run)
        run.logger.warning("hello")

    job = await workshop.ready(payload={"customer": "c1"}, timeout_seconds=60)
    await workshop.work_off({"handle": handle})
    (run,) = seen
    assert (run.name, run.fire_at, run.attempt, run.reason) == (f"job {job.job_id}", AT, 1, "tick")
    assert run.run_id == format_run_id(job.job_id, to_us(AT))
    assert run.payload == {"customer": "c1"}
    assert run.idempotency_key == f"{run.job_id}:{int(AT.timestamp())}"
    assert parse_token(run.fencing_token).lane_id == job.lane_id
    assert run.deadline - run.started_at == timedelta(seconds=60)
    (record,) = (record for record in caplog.records if record.name == "evertick.run")
    assert record.getMessage() == f"job {job.job_id} {run.run_id}: hello"
    assert record.levelno == logging.WARNING
    assert record.__dict__["run_id"] == run.run_id


async def test_a_handler_that_raises_is_retried_after_its_delay(workshop: Workshop) -> None:
    async def handle() -> None:
        raise ValueError("no such customer")

    job = await workshop.ready()
    began_at = await workshop.now()
    await workshop.work_off({"handle": handle})
    outcome = await workshop.outcome(job)
    assert (outcome.result, outcome.is_final) == ("failed", False)
    assert outcome.error is not None
    assert outcome.error.startswith("ValueError: no such customer\n")
    assert 'raise ValueError("no such customer")' in outcome.error
    assert "evertick/executor" not in outcome.error, "the frames are the handler's alone"
    assert "execution.py" not in outcome.error
    ((attempt, _),) = await workshop.retries(job)
    assert attempt == 2
    due_at = await workshop.connection.fetchval("SELECT due_at FROM timers WHERE kind = 'retry'")
    assert began_at + timedelta(seconds=6.6) < due_at <= await workshop.now() + timedelta(seconds=10)


async def test_a_run_dies_when_its_attempts_are_used_up(workshop: Workshop) -> None:
    attempts: list[int] = []

    async def handle(run: Run) -> None:
        attempts.append(run.attempt)
        raise ValueError

    job = await workshop.ready(retry='{"max_retries":1,"backoff":"fixed","delay_seconds":1,"max_delay_seconds":1}')
    await workshop.work_off({"handle": handle})
    await workshop.fire_retry(job)
    await workshop.work_off({"handle": handle})
    assert attempts == [1, 2]
    assert await workshop.dead_letters(job) == [(2, "exhausted")]
    assert await workshop.retries(job) == []


async def test_a_handler_can_say_that_trying_again_is_no_use(workshop: Workshop) -> None:
    def handle() -> None:
        raise DoNotRetry("the customer is gone")

    job = await workshop.ready()
    await workshop.work_off({"handle": handle})
    assert await workshop.dead_letters(job) == [(1, "not_retryable")]
    assert (await workshop.outcome(job)).is_final


async def test_a_handler_can_say_when_to_try_again(workshop: Workshop) -> None:
    async def handle() -> None:
        raise RetryLater(timedelta(hours=1))

    job = await workshop.ready()
    await workshop.work_off({"handle": handle})
    ((attempt, due_in),) = await workshop.retries(job)
    assert attempt == 2
    assert 3590 <= due_in <= 3600 * 1.1


async def test_a_handler_that_exits_ends_its_attempt_and_not_the_worker(workshop: Workshop) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    def leave_thread() -> None:
        raise SystemExit(3)

    async def stay() -> None: ...

    jobs = [await workshop.ready(name) for name in ("leave", "leave_thread", "stay")]
    await workshop.work_off({"leave": leave, "leave_thread": leave_thread, "stay": stay})
    assert [(await workshop.outcome(job)).result for job in jobs] == ["failed", "failed", "success"]


async def test_a_handler_that_gives_up_on_a_cancelled_future_has_failed(workshop: Workshop) -> None:
    async def handle() -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    job = await workshop.ready()
    await workshop.work_off({"handle": handle})
    assert (await workshop.outcome(job)).error is not None
    assert await workshop.results(job) == ["failed"]


async def test_an_attempt_that_was_cancelled_while_it_waited_is_not_run(workshop: Workshop) -> None:
    calls: list[int] = []
    job = await workshop.ready()
    await workshop.end_elsewhere(job)
    await workshop.work_off({"handle": lambda: calls.append(1)})
    assert (calls, await workshop.results(job), await workshop.leases()) == ([], ["cancelled"], 0)


async def test_context_variables_of_one_run_are_not_seen_by_the_next(workshop: Workshop) -> None:
    customer = contextvars.ContextVar("customer", default="nobody")
    seen: list[str] = []

    async def handle() -> None:
        seen.append(customer.get())
        customer.set("c1")

    def handle_in_thread() -> None:
        seen.append(customer.get())
        customer.set("c1")

    await workshop.ready(count=3)
    await workshop.ready("thread", count=3)
    await workshop.work_off({"handle": handle, "thread": handle_in_thread}, concurrency=1, threads=1)
    assert seen == ["nobody"] * 6


async def test_a_worker_without_handlers_takes_nothing(workshop: Workshop) -> None:
    job = await workshop.ready()
    await workshop.work_off({})
    assert await workshop.results(job) == []


async def test_errors_and_results_that_postgres_cannot_hold_are_made_so(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest's own reports cannot hold them either.
    monkeypatch.setattr(logging.getLogger("evertick.worker"), "disabled", True)

    async def fail() -> None:
        raise ValueError("a\x00b\ud800c" + "x" * 10_000)

    async def odd() -> object:
        return {"half": "\ud800", "object": object()}

    failed, succeeded = await workshop.ready("fail", retry=ONE_TRY), await workshop.ready("odd")
    await workshop.work_off({"fail": fail, "odd": odd})
    error = (await workshop.outcome(failed)).error
    assert error is not None
    assert error.startswith("ValueError: a\ufffdb\ufffdc")
    assert len(error.encode()) <= 4096
    assert (await workshop.outcome(succeeded)).result == "success"
