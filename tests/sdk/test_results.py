"""What handlers return: kept with the run, waited for, and given back to whoever has submitted it."""

import asyncio
import pickle
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from engine import PATIENCE_SECONDS, until
from evertick import App, DoNotRetry, InvalidInput, ResultNotKept, Run, RunCancelled, RunFailed
from evertick.client import AsyncClient
from evertick.domain.attempt import SUCCEEDED, NotRecorded, Succeeded
from evertick.domain.limits import MAX_OUTPUT_BYTES
from evertick.executor.recorder import Recorder
from evertick.executor.source import AttemptCounters
from evertick.runtime.loop import Loop
from evertick.usecases.errors import JobNotFound, RunNotFound
from pgbouncer import pgbouncer
from sdk.served import Served, served, submitted, worker_of

AT = datetime(2026, 6, 9, tzinfo=UTC)


@dataclass
class Invoice:
    number: UUID
    total: Decimal
    sent_at: datetime


class Size(msgspec.Struct):
    width: int


class Odd:
    def __repr__(self) -> str:
        return "<Odd one>"


def make_app(database_url: str | None) -> App:
    app = App(name="shop", database_url=database_url)

    @app.handler
    def bill(customer: str) -> Invoice:
        return Invoice(UUID(int=len(customer)), Decimal("2.50"), AT)

    @app.handler
    async def measure(run: Run, sizes: list[int]) -> dict[int, Size]:
        return {width: Size(width) for width in sizes}

    @app.handler
    def give(kind: str) -> Any:
        values = {
            "none": None,
            "odd": Odd(),
            "raw": msgspec.Raw(b"not JSON"),
            "long": "x" * MAX_OUTPUT_BYTES,
            "full": "x" * (MAX_OUTPUT_BYTES - 2),
        }
        return values.get(kind, kind)

    @app.handler
    def deep() -> Any:
        nested: Any = 1
        for _ in range(100):
            nested = [nested]
        return nested

    @app.handler
    def lie() -> int:
        return "none"  # type: ignore[return-value]

    @app.handler
    async def fail() -> None:
        raise DoNotRetry("the card\nis stolen")

    @app.handler
    async def hang() -> None:
        await asyncio.Event().wait()

    return app


@asynccontextmanager
async def running(database_url: str) -> AsyncIterator[App]:
    app = make_app(database_url)
    async with app.running(), asyncio.timeout(PATIENCE_SECONDS):
        yield app


async def test_what_a_handler_returns_comes_back_as_its_annotation_says(database_url: str) -> None:
    async with running(database_url) as app:
        billed = await (await app.submit("bill", {"customer": "c1"})).result()
        assert billed == Invoice(UUID(int=2), Decimal("2.50"), AT)
        measured = await (await app.submit("measure", {"sizes": [3, 4]})).result(timeout=60)
        assert measured == {3: Size(3), 4: Size(4)}
        assert await (await app.submit("give", {"kind": "none"})).result(timedelta(minutes=1)) is None
        kept = await app.submit("give", {"kind": "full"})
        assert len(await kept.result()) == MAX_OUTPUT_BYTES - 2
        assert (await kept.wait()).status == "success"
        assert await app.submitted(kept.run_id).result() == await kept.result()
        with pytest.raises(
            InvalidInput, match="of handler 'lie' does not fit its annotation: expected `int`, got `str`"
        ):
            await (await app.submit("lie")).result()


async def test_what_cannot_be_kept_is_a_success_all_the_same(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(database_url) as app:
        for handler, payload, begins in (
            ("give", {"kind": "odd"}, "<Odd one>"),
            ("give", {"kind": "raw"}, "not JSON"),
            ("give", {"kind": "long"}, '"xxx'),
            ("deep", None, "[[["),
        ):
            given = await app.submit(handler, payload)
            with pytest.raises(ResultNotKept, match=f"what {given.run_id} returned is not kept") as unkept:
                await given.result()
            assert unkept.value.excerpt.startswith(begins)
            run = await given.wait()
            assert (run.status, run.attempt, run.output) == ("success", 1, None)
    assert "it cannot be written as JSON: it has a Odd" in caplog.text
    assert "as JSON it has 65,538 bytes, and at most 65,536 are kept" in caplog.text
    assert "it is nested more than 64 levels deep" in caplog.text


async def test_a_function_may_keep_no_result(database_url: str) -> None:
    app = App(database_url=database_url)

    @app.handler(keep_result=False)
    def quiet() -> str:
        return "secret"

    @app.schedule("manual", keep_result=False)
    async def declared() -> str:
        return "secret"

    async with app.running(), asyncio.timeout(PATIENCE_SECONDS):
        for given in (await app.submit(quiet), await app.submit(declared)):
            run = await given.wait()
            assert (run.status, run.output, run.attempts[-1].excerpt) == ("success", None, None)
            assert await given.result() is None
    assert quiet() == "secret", "it stays the function that it was"


async def test_a_setting_limits_what_workers_keep(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTICK_RESULT_MAX_BYTES", "5")
    async with running(database_url) as app:
        assert await (await app.submit("give", {"kind": "abc"})).result() == "abc"
        with pytest.raises(ResultNotKept):
            await (await app.submit("give", {"kind": "abcd"})).result()


@pytest.mark.parametrize(("most", "excerpt"), [(5, '"abcd"'), (0, None)])
async def test_a_setting_of_the_server_limits_what_workers_over_http_keep(
    database_url: str, most: int, excerpt: str | None
) -> None:
    async with served(database_url, result_max_bytes=most) as house, house.client() as client:
        async with (await worker_of(house, make_app(None), queues=("default",))).running():
            run = await house.until_run(client, await submitted(client, "give", {"kind": "abcd"}), "success")
        assert (run.output, run.attempts[-1].excerpt) == (None, excerpt)


async def test_a_run_without_a_result_says_why(database_url: str) -> None:
    async with running(database_url) as app:
        failed = await app.submit("fail")
        with pytest.raises(RunFailed, match=f"{failed.run_id} is dead after 1 attempt: DoNotRetry: the card$") as dead:
            await failed.result()
        again = pickle.loads(pickle.dumps(dead.value))
        assert (again.run_id, again.status, str(again)) == (failed.run_id, "dead", str(dead.value))
        hanging = await app.submit("hang")
        with pytest.raises(TimeoutError, match=rf"{hanging.run_id} is not over after 0\.05 s"):
            await hanging.result(0.05)

        async def is_running() -> bool:
            return await hanging.status() == "running"

        await until(is_running)  # a run that was not fired yet would be cancelled with its job
        await app.cancel(hanging.run_id)
        assert await hanging.status() == "cancelled"
        with pytest.raises(RunCancelled, match=f"{hanging.run_id} is cancelled"):
            await hanging.result()
        later = await app.submit("give", {"kind": "x"}, delay="3d")
        waiting = asyncio.create_task(later.result())
        await app.cancel(later.run_id)
        with pytest.raises(RunCancelled, match="its job was deleted before its time"):
            await waiting
        with pytest.raises(RunNotFound):
            await app.cancel(later.run_id)


async def test_a_run_that_was_never_committed_is_not_waited_for(database_url: str) -> None:
    async with running(database_url) as app:
        submitted = await app.submit("give", {"kind": "x"}, delay="3d")
        connected = await app.connection()
        await connected.pool.execute("DELETE FROM timers; DELETE FROM jobs")
        with pytest.raises(JobNotFound):
            await submitted.wait()


async def test_a_run_that_cannot_come_any_more_is_not_waited_for(database_url: str) -> None:
    async with running(database_url) as app:
        submitted = await app.submit("give", {"kind": "x"})
        assert await submitted.result() == "x"
        connected = await app.connection()
        await connected.pool.execute("DELETE FROM outcomes; DELETE FROM attempts")  # as history that has ended
        with pytest.raises(RunNotFound):
            await submitted.wait(PATIENCE_SECONDS)
        await connected.pool.execute("UPDATE jobs SET status = 'deleted'")
        with pytest.raises(RunNotFound):
            await submitted.wait(PATIENCE_SECONDS)


async def test_waiting_ends_with_the_app(database_url: str) -> None:
    async with running(database_url) as app:
        submitted = await app.submit("give", {"kind": "x"}, delay="3d")
        waiting = asyncio.create_task(submitted.wait())
        await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="the app was closed"):
        await waiting


async def test_many_are_waited_for_together(database_url: str) -> None:
    async with running(database_url) as app:
        given = [await app.submit("give", {"kind": str(number)}) for number in range(20)]
        assert await asyncio.gather(*(each.result() for each in given)) == [str(number) for number in range(20)]


async def test_sync_code_waits_too(database_url: str) -> None:
    async with running(database_url) as app:
        other = make_app(database_url)

        def use() -> tuple[Any, Any]:
            given = other.submit_sync("give", {"kind": "a"})
            assert given.result(60) == "a"
            assert (given.wait().run_id, given.status()) == (given.run_id, "success")
            with pytest.raises(TimeoutError):
                other.submit_sync("give", {"kind": "b"}, delay="3d").wait(0.01)
            billed = other.submit_sync("bill", {"customer": "c1"})
            return billed.result(60), other.submitted_sync(billed.run_id).result(60)

        typed, plain = await asyncio.to_thread(use)
        assert typed == Invoice(UUID(int=2), Decimal("2.50"), AT)
        assert plain == {"number": str(UUID(int=2)), "total": "2.50", "sent_at": "2026-06-09T00:00:00Z"}
        await other.close()
        assert (await app.history(limit=1))[0].status == "success"


async def test_results_are_waited_for_behind_a_pooler(database_url: str) -> None:
    async with running(database_url), pgbouncer(database_url) as pooler:
        app = make_app(pooler.url)
        async with app:
            assert await (await app.submit("give", {"kind": "through"})).result(PATIENCE_SECONDS) == "through"


async def test_a_remote_worker_reports_results(house: Served, client: AsyncClient) -> None:
    app = make_app(None)
    async with (await worker_of(house, app, queues=("default",))).running():
        sizes = await submitted(client, "measure", {"sizes": [7]})
        run = await house.until_run(client, sizes, "success")
        assert (run.output, run.attempts[0].excerpt) == ({"7": {"width": 7}}, '{"7":{"width":7}}')
        odd = await submitted(client, "give", {"kind": "odd"})
        run = await house.until_run(client, odd, "success")
        assert (run.output, run.attempts[0].excerpt, run.attempt) == (None, "<Odd one>", 1)
        long = await submitted(client, "give", {"kind": "long"})
        run = await house.until_run(client, long, "success")
        assert run.output is None
        assert run.attempts[0].excerpt == '"' + "x" * 1023


class CountingSource:
    """Takes outcomes, and counts those of each call."""

    max_outcomes = 100
    max_output_bytes = 10

    def __init__(self) -> None:
        self.batches: list[int] = []

    def loop(self, name: str, step: Any) -> Loop:
        return Loop(name, step)

    async def record(self, ended: Sequence[Any], done_leases: Sequence[int]) -> NotRecorded:
        self.batches.append(len(ended))
        return NotRecorded(set(), set())


async def test_outcomes_are_recorded_in_batches_that_their_outputs_fit_in() -> None:
    source: Any = CountingSource()
    recorder = Recorder(source, AttemptCounters())
    attempt: Any = None
    for outcome in (SUCCEEDED, Succeeded("x" * 99), *(Succeeded(output="x" * size) for size in (6, 4, 1, 20, 1))):
        recorder.add([(attempt, outcome, None, AT, None)], [])
    await recorder.flush()
    assert source.batches == [4, 1, 1, 1]


async def test_outputs_are_counted_in_bytes() -> None:
    source: Any = CountingSource()
    recorder = Recorder(source, AttemptCounters())
    attempt: Any = None
    for _ in range(2):
        recorder.add([(attempt, Succeeded(output="\N{EURO SIGN}" * 2), None, AT, None)], [])
    await recorder.flush()
    assert source.batches == [1, 1]
