"""The test kit: an app on a virtual clock."""

from datetime import UTC, datetime, timedelta

import pytest

from evertick import App, Run
from evertick.domain.errors import InvalidInput
from evertick.domain.states import RunStatus
from evertick.testing import ClockRefused, virtual

START = datetime(2026, 3, 28, tzinfo=UTC)


async def test_an_hour_passes_in_a_moment(database_url: str) -> None:
    app = App()
    clock: list[datetime] = []

    @app.cron("*/15 * * * *")
    async def refresh(run: Run) -> None:
        clock.append(run.started_at)

    async with virtual(app, START, database_url=database_url) as time:
        await time.advance(hours=1)
        assert [run.fire_at for run in time.runs("refresh")] == [START + n * timedelta(minutes=15) for n in range(1, 5)]
        assert clock == [run.fire_at for run in time.runs("refresh")]
        assert time.now == START + timedelta(hours=1)


async def test_daylight_saving_is_as_in_life(database_url: str) -> None:
    app = App()

    @app.cron("30 2 * * *", timezone="Europe/Paris")
    def nightly() -> None: ...

    async with virtual(app, START, database_url=database_url) as time:
        await time.to(datetime(2026, 3, 31, tzinfo=UTC))
        assert [f"{run.fire_at:%d %H:%M}" for run in time.runs("nightly")] == ["28 01:30", "29 01:00", "30 00:30"]


async def test_retries_come_in_their_time(database_url: str) -> None:
    app = App()

    @app.handler()
    async def flaky(run: Run) -> None:
        if run.attempt < 3:
            raise ValueError("not yet")

    async with virtual(app, START, database_url=database_url) as time:
        submitted = await app.submit("flaky", delay="1h", name="flaky once", retry_delay_seconds=60)
        await time.advance(minutes=61, seconds=30)
        assert await submitted.status() is RunStatus.RETRYING
        await time.advance(hours=1)
        (run,) = time.runs("flaky once")
        assert (run.status, run.attempt, run.fire_at) == (RunStatus.SUCCESS, 3, START + timedelta(hours=1))
        assert run.started_at is not None
        assert run.started_at >= run.fire_at + timedelta(minutes=3)


async def test_runs_with_one_key_take_turns(database_url: str) -> None:
    app = App()
    begun: list[str] = []

    @app.handler()
    async def book(run: Run) -> None:
        begun.append(run.name)

    async with virtual(app, START, database_url=database_url) as time:
        for name in ("first", "second", "third"):
            await app.submit("book", delay="1h", name=name, ordering_key="ledger")
        await time.advance(hours=2)
        assert begun == ["first", "second", "third"]


async def test_what_a_handler_submits_runs_too(database_url: str) -> None:
    app = App()

    @app.handler()
    async def parent() -> None:
        await app.submit("child", name="grown up", delay="10m")

    @app.handler()
    def child() -> None: ...

    async with virtual(app, START, database_url=database_url) as time:
        await app.submit("parent")
        await time.advance(minutes=9)
        assert time.runs("grown up") == []
        await time.advance(minutes=1)
        assert [run.status for run in time.runs("grown up")] == [RunStatus.SUCCESS]


@pytest.mark.parametrize("limits", [{"MAX_LEAPT": 2}, {"UNREAD_RUNS": 1}], ids=["many due at once", "many runs"])
async def test_it_runs_the_same_whatever_is_looked_at(
    database_url: str, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(f"evertick.testing.{name}", limit)
    app = App()

    def work() -> None: ...

    for number in range(4):
        app.every("10m", name=f"job {number}")(work)
    async with virtual(app, START, database_url=database_url) as time:
        await time.advance(minutes=30)
        assert [(run.name, run.fire_at - START) for run in time.runs()] == [
            (f"job {number}", timedelta(minutes=at)) for at in (10, 20, 30) for number in range(4)
        ]
        assert {run.status for run in time.runs()} == {RunStatus.SUCCESS}


async def test_the_clock_does_not_go_back(database_url: str) -> None:
    async with virtual(App(), START, database_url=database_url) as time:
        with pytest.raises(InvalidInput, match="is past"):
            await time.to(START - timedelta(seconds=1))
        with pytest.raises(InvalidInput, match="needs a zone"):
            await time.to(datetime(2027, 1, 1))  # noqa: DTZ001 - that is the point


async def test_a_database_with_jobs_keeps_its_clock(database_url: str) -> None:
    async with App(database_url=database_url) as app:
        await app.submit("anything", delay="1d")
    with pytest.raises(ClockRefused):
        async with virtual(App(), START, database_url=database_url):
            pass


@pytest.mark.parametrize("schema", [None, "order"])
async def test_a_database_of_an_earlier_test_is_begun_anew(database_url: str, schema: str | None) -> None:
    for _ in range(2):
        app = App(schema=schema)
        app.every("1h", name="hourly")(lambda: None)
        async with virtual(app, START, database_url=database_url) as time:
            await time.advance(hours=2)
            assert len(time.runs("hourly")) == 2


async def test_without_a_database_it_brings_its_own() -> None:
    app = App()
    app.every("1d", name="daily")(lambda: None)
    async with virtual(app, START) as time:
        await time.advance(days=3)
        assert len(time.runs()) == 3
