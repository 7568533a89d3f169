"""What a start of an app makes of the jobs that its code declares, and declared before."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import asyncpg
import pytest

from engine import until
from evertick import App
from evertick.domain.errors import InvalidFields

PAST = "2001-02-03T04:05:06Z"


def versions(url: str, orphans: Literal["warn", "pause", "delete"] = "warn") -> Callable[..., App]:
    """Makes apps of one name, each a version of its code: with these jobs by name, and their schedules."""

    def version(jobs: dict[str, str], **fields: Any) -> App:
        app = App(name="shop", database_url=url, orphans=orphans)
        for name, schedule in jobs.items():
            app.schedule(schedule, name=name, **fields)(tick)
        return app

    return version


def tick() -> None: ...


async def start(app: App) -> None:
    async with app.running(schedules=False):
        pass


async def states(connection: asyncpg.Connection) -> dict[str, str]:
    rows = await connection.fetch("SELECT name, status::text FROM jobs WHERE status <> 'deleted'")
    return {row["name"]: row["status"] for row in rows}


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "evertick.app")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "evertick.app"]


@pytest.mark.parametrize("schedule", ["now", "in 6s", "2999-01-01T00:00:00Z"])
async def test_a_one_off_is_created_once_for_each_declaration(
    database_url: str, connection: asyncpg.Connection, schedule: str
) -> None:
    version = versions(database_url)
    await start(version({"seed": schedule}))
    await connection.execute("DELETE FROM timers; DELETE FROM job_versions; DELETE FROM jobs")  # after its retention
    await start(version({"seed": schedule}))
    assert await states(connection) == {}
    await start(version({"seed": schedule}, max_retries=0))
    assert await states(connection) == {"seed": "active"}


async def test_a_one_off_whose_time_has_passed_is_skipped_with_a_warning(
    database_url: str, connection: asyncpg.Connection, messages: Callable[[], list[str]]
) -> None:
    await start(versions(database_url)({"launch": PAST, "beat": "every 5s"}))
    assert await states(connection) == {"beat": "active"}
    (said,) = [text for text in messages() if "launch" in text]
    assert said.startswith(f"{__file__}:")
    assert f"job launch is skipped: its schedule '{PAST}' is past, by more than its grace" in said


async def test_a_job_whose_window_is_over_is_skipped_too(
    database_url: str, connection: asyncpg.Connection, messages: Callable[[], list[str]]
) -> None:
    end_at = datetime.now(UTC) - timedelta(days=1)
    await start(versions(database_url)({"campaign": "@hourly"}, end_at=end_at))
    assert await states(connection) == {}
    assert "never fires again" in messages()[0]


async def test_the_log_tells_what_has_changed(database_url: str, messages: Callable[[], list[str]]) -> None:
    version = versions(database_url)
    await start(version({"heartbeat": "every 7s"}))
    await start(version({"heartbeat": "every 7s"}))
    await start(version({"heartbeat": "every 5s"}, max_retries=0))
    assert messages() == [
        "heartbeat: created, schedule every 7s",
        "heartbeat: schedule every 7s → every 5s, max_retries 3 → 0, misfire_grace_seconds 7 → 5",
    ]


@pytest.mark.parametrize(("orphans", "left"), [("warn", "active"), ("pause", "paused"), ("delete", None)])
async def test_jobs_that_a_new_version_declares_no_more_are_left_paused_or_deleted(
    database_url: str,
    connection: asyncpg.Connection,
    orphans: Literal["warn", "pause", "delete"],
    left: str | None,
    messages: Callable[[], list[str]],
) -> None:
    version = versions(database_url, orphans)
    await start(version({"old": "@hourly", "kept": "@hourly"}))
    await start(version({"kept": "@hourly", "new": "@hourly"}))
    assert await states(connection) == {"kept": "active", "new": "active"} | ({"old": left} if left else {})
    assert "these jobs of app shop are not declared in the code any more, and" in messages()[-1]
    assert messages()[-1].endswith(": old")


async def test_an_old_process_that_starts_during_a_deployment_leaves_what_is_newer(
    database_url: str, connection: asyncpg.Connection
) -> None:
    version = versions(database_url, "delete")
    await start(version({"old": "@hourly"}))
    await start(version({"new": "@hourly"}))
    await start(version({"old": "@hourly"}))
    assert await states(connection) == {"old": "active", "new": "active"}
    await start(version({"new": "@hourly"}))
    assert await states(connection) == {"new": "active"}


async def test_an_old_process_warns_that_a_newer_job_stays(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    version = versions(database_url)
    await start(version({"old": "@hourly"}))
    await start(version({"new": "@hourly"}))
    caplog.clear()
    await start(version({"old": "@hourly"}))
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "are declared by a newer version" in said
    assert said.endswith("`evertick jobs delete` deletes one that is not wanted any more: new")


@pytest.mark.parametrize("orphans", ["pause", "delete"])
async def test_a_job_that_a_newer_version_declares_meanwhile_is_no_orphan(
    database_url: str, connection: asyncpg.Connection, orphans: Literal["pause", "delete"]
) -> None:
    version = versions(database_url, orphans)
    await start(version({"kept": "@hourly", "back": "@hourly"}))
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    async with asyncio.TaskGroup() as tasks, connection.transaction():
        await connection.execute(
            "UPDATE declared_jobs SET version_at = version_at + interval '1 day' WHERE name = 'back'"
        )
        tasks.create_task(start(version({"kept": "@hourly"})))
        await until(lambda: connection.fetchval(waiting))
    assert await states(connection) == {"kept": "active", "back": "active"}


async def test_a_job_that_is_declared_again_goes_on(database_url: str, connection: asyncpg.Connection) -> None:
    version = versions(database_url, "pause")
    await start(version({"back": "@hourly"}))
    await start(version({"other": "@hourly"}))
    assert (await states(connection))["back"] == "paused"
    await start(version({"back": "@hourly"}))
    assert (await states(connection))["back"] == "active"


async def test_a_job_whose_removal_was_reverted_is_no_orphan_while_a_worker_of_that_version_is_alive(
    database_url: str, connection: asyncpg.Connection, messages: Callable[[], list[str]]
) -> None:
    version = versions(database_url, "delete")
    with_it, without = {"kept": "@hourly", "back": "@hourly"}, {"kept": "@hourly"}
    await start(version(with_it))
    await start(version(without))
    assert await states(connection) == {"kept": "active"}
    async with version(with_it).running(schedules=False):
        await until(lambda: connection.fetchval("SELECT true FROM workers"))
        await start(version(without))  # a process of the version that was rolled back
        assert await states(connection) == {"kept": "active", "back": "active"}
        assert messages()[-1].endswith("its workers are alive: they stay as they are until a start without these: back")
    await start(version(without))
    assert await states(connection) == {"kept": "active"}, "the removal counts once the others are gone"


async def test_a_removed_job_that_an_old_process_brought_back_goes_although_its_handler_stays(
    database_url: str, connection: asyncpg.Connection
) -> None:
    version = versions(database_url, "delete")
    with_it, without = {"kept": "@hourly", "back": "@hourly"}, {"kept": "@hourly"}
    await start(version(with_it))
    async with version(without).running(schedules=False):
        await until(lambda: connection.fetchval("SELECT true FROM workers"))
        await start(version(with_it))  # an old process that restarts late
        assert await states(connection) == {"kept": "active", "back": "active"}
        await start(version(without))
        assert await states(connection) == {"kept": "active"}


async def test_what_an_older_evertick_declares_is_no_orphan_though_it_does_not_note_its_names(
    database_url: str, connection: asyncpg.Connection
) -> None:
    version = versions(database_url, "delete")
    with_it, without = {"kept": "@hourly", "back": "@hourly"}, {"kept": "@hourly"}
    await start(version(with_it))
    await start(version(without))
    await start(version(with_it))  # a rollback, to an Evertick without the column
    assert await connection.execute("UPDATE app_versions SET names = NULL WHERE 'back' = ANY(names)") == "UPDATE 1"
    await start(version(without))
    assert await states(connection) == {"kept": "active", "back": "active"}


async def test_what_a_person_has_labelled_or_paused_stays_so(database_url: str, connection: asyncpg.Connection) -> None:
    version = versions(database_url, "delete")
    async with version({"declared": "@hourly"}) as app:
        await app.submit("tick", name="by hand", delay="3d", labels={"app": "shop"})
    await start(version({"declared": "@hourly"}))
    await connection.execute("UPDATE jobs SET status = 'paused', pause_reason = 'maintenance' WHERE name = 'declared'")
    await start(version({"declared": "@hourly"}))
    assert await states(connection) == {"by hand": "active", "declared": "paused"}


async def test_what_only_the_database_can_refuse_names_the_job_and_its_place_too(
    database_url: str, connection: asyncpg.Connection
) -> None:
    await connection.execute("UPDATE tenants SET shortest_interval_seconds = 3600")
    with pytest.raises(InvalidFields) as refused:
        await start(versions(database_url)({"beat": "every 5s"}))
    assert str(refused.value).startswith(f"{__file__}:")
    assert "job 'beat': schedule= fires every 0:00:05, more often than" in str(refused.value)


async def test_a_declared_payload_must_fit_its_handler(database_url: str) -> None:
    app = App(database_url=database_url)

    @app.every("1h", payload={"report": "weekly", "year": "x"})
    def send(report: str, year: int) -> None: ...

    with pytest.raises(InvalidFields, match=r"job 'send': payload= does not fit handler 'send': expected `int`, got"):
        await start(app)
