from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from cli.commands import Cli
from evertick.domain.ids import Prefix, format_id, format_run_id, parse_id
from evertick.domain.schedule.instants import to_us

pytestmark = pytest.mark.parametrize("backend", ["database", "api"])

AT = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=2)
SEQ = to_us(AT + timedelta(seconds=1))


class World:
    """A job with one run that ended badly for good, and one tick before it that was missed."""

    def __init__(self, connection: asyncpg.Connection, job: dict[str, Any]) -> None:
        self.connection = connection
        self.job_id = parse_id(Prefix.JOB, job["job_id"])
        self.run_id = format_run_id(self.job_id, to_us(AT))

    async def fill(self) -> None:
        lane = await self.connection.fetchval("SELECT lane_id FROM lanes")
        await self.connection.execute(
            "SELECT add_day((clock_at() AT TIME ZONE 'UTC')::date - 1)",
        )
        await self.connection.execute(
            "INSERT INTO attempts VALUES ($1, $2, $3, $4, $4, 1, 1, 'tick', 4)", lane, SEQ, self.job_id, AT
        )
        await self.connection.execute(
            "INSERT INTO outcomes VALUES ($1, $2, $3, $4, 'failed', 500, true, 'worker-1', 'no [luck]', NULL)",
            lane,
            SEQ,
            AT + timedelta(seconds=1),
            AT + timedelta(seconds=2),
        )
        await self.connection.execute(
            "INSERT INTO dead_letters VALUES ($1, $2, 1, $3, $4, $2, 1, 4, 'exhausted')", self.job_id, AT, lane, SEQ
        )
        await self.connection.execute(
            "INSERT INTO gaps VALUES ($1, $2, $3, 3, NULL, 1, 'missed')",
            self.job_id,
            AT - timedelta(minutes=3),
            AT - timedelta(minutes=1),
        )


@pytest.fixture
async def world(cli: Cli, connection: asyncpg.Connection) -> World:
    world = World(connection, await cli.json("jobs", "add", "refresh", "* * * * *", "--handler", "h"))
    await world.fill()
    return world


async def test_runs_of_a_job_are_listed_with_the_ticks_that_did_not_run(cli: Cli, world: World) -> None:
    run, gap = await cli.json("runs", "list", "--job", "refresh")
    assert (run["run_id"], run["status"], run["attempt"]) == (world.run_id, "dead", 4)
    assert (run["duration_ms"], run["result_code"], run["worker_id"]) == (1000, 500, "worker-1")
    assert (gap["run_id"], gap["status"], gap["count"]) == (None, "missed", 3)
    lines = (await cli("runs", "list", "--job", "refresh")).splitlines()[2:]
    assert "no [luck]" in lines[0]
    assert "3 ticks" in lines[1]


async def test_the_error_of_a_run_does_nothing_to_the_terminal_that_shows_it(cli: Cli, world: World) -> None:
    error = "\x1b]0;owned\x07\x1b[2J\x9b1mboom\u202e"
    await world.connection.execute("UPDATE outcomes SET error = $1", error)
    lines = ("runs", "list"), ("runs", "show", world.run_id), ("dead-letters", "list")
    for words in lines:
        said = await cli(*words)
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(said)
        assert "boom" in said
    (run,) = await cli.json("runs", "list")
    assert run["error"] == error, "JSON says exactly what it is"


async def test_a_list_has_one_line_of_an_error_and_a_run_its_traceback(cli: Cli, world: World) -> None:
    await world.connection.execute("UPDATE outcomes SET error = $1", 'ValueError: no\n  File "tasks.py", line 3')
    listed = await cli("runs", "list")
    assert "refresh" in listed, "the name of the job"
    assert "ValueError: no" in listed
    assert "tasks.py" not in listed
    shown = await cli("runs", "show", world.run_id)
    assert "Traceback of attempt 4:" in shown
    assert '  File "tasks.py", line 3' in shown


async def test_runs_of_all_jobs_come_by_the_column_that_is_first(cli: Cli, world: World) -> None:
    """The older tick was attempted later."""
    lane = await world.connection.fetchval("SELECT lane_id FROM lanes")
    earlier = AT - timedelta(minutes=9)
    await world.connection.execute(
        "INSERT INTO attempts VALUES ($1, $2, $3, $4, $4, 1, 1, 'late', 1)", lane, SEQ + 1, world.job_id, earlier
    )
    assert [run["scheduled_at"][:16] for run in await cli.json("runs", "list")] == [
        f"{at:%Y-%m-%dT%H:%M}" for at in (AT, earlier)
    ]


async def test_a_run_that_runs_says_for_how_long(cli: Cli, world: World) -> None:
    await world.connection.execute("DELETE FROM outcomes")
    await world.connection.execute("UPDATE lanes SET head = $1", SEQ)
    await world.connection.execute(
        "INSERT INTO leases (lease_id, lane_id, first_seq, last_seq, expires_at, lease_seconds, partition, worker,"
        " running_seqs, running_since)"
        " SELECT 1, lane_id, $1::bigint, $1, clock_at() + interval '1 hour', 30, partition, 'w-1',"
        " ARRAY[$1::bigint], ARRAY[clock_at() - interval '300 s'] FROM lanes",
        SEQ,
    )
    assert "running for 5 min" in await cli("runs", "list")
    shown = await cli("runs", "show", world.run_id)
    assert "w-1" in shown
    assert "5 min" in shown


async def test_a_run_is_shown_with_its_progress_and_then_with_what_it_returned(cli: Cli, world: World) -> None:
    await world.connection.execute("DELETE FROM outcomes; DELETE FROM dead_letters")
    await world.connection.execute("UPDATE lanes SET head = $1", SEQ)
    await world.connection.execute(
        "INSERT INTO leases (lease_id, lane_id, first_seq, last_seq, worker, expires_at, lease_seconds, partition,"
        " progress)"
        " SELECT 1, lane_id, seq, seq, 'worker-1', clock_at() + interval '1 hour', 30, (lane_id & 255)::smallint,"
        " jsonb_build_object(seq::text, '3 of 10') FROM attempts"
    )
    assert "3 of 10" in await cli("runs", "list")
    assert "3 of 10" in await cli("runs", "list", "--job", str(format_id(Prefix.JOB, world.job_id)))
    assert "3 of 10" in await cli("runs", "show", world.run_id)
    await world.connection.execute(
        "INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final, output)"
        " SELECT lane_id, seq, clock_at(), 'success', true, '{\"sent\":[1,\"ü\"]}' FROM attempts"
    )
    shown = await cli("runs", "show", world.run_id)
    assert '{"sent": [1, "ü"]}' in shown
    assert "3 of 10" not in shown
    assert (await cli.json("runs", "show", world.run_id))["output"] == {"sent": [1, "ü"]}


async def test_runs_are_filtered_by_status_and_time(cli: Cli, world: World) -> None:
    job = ("runs", "list", "--job", "refresh")
    assert [entry["status"] for entry in await cli.json(*job, "--status", "missed")] == ["missed"]
    assert [entry["status"] for entry in await cli.json("runs", "list", "--status", "dead")] == ["dead"]
    assert await cli.json("runs", "list", "--status", "success") == []
    assert len(await cli.json(*job, "--from", AT.isoformat())) == 1
    assert len(await cli.json(*job, "--to", AT.isoformat())) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--status", "glad"), "must be one of pending"),
        (("--status", "missed"), "needs --job"),
        (("--from", "yesterday"), "must be an instant with its offset"),
        (("--to", "2026-01-01T00:00:00"), "must be an instant with its offset"),
    ],
)
async def test_an_invalid_filter_is_wrong_usage(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    assert words in await cli("runs", "list", *arguments, code=2)


async def test_a_run_is_shown_with_its_attempts(cli: Cli, world: World) -> None:
    detail = await cli.json("runs", "show", world.run_id)
    assert detail["run_id"] == world.run_id
    (attempt,) = detail["attempts"]
    assert (attempt["result"], attempt["error"]) == ("failed", "no [luck]")
    assert attempt["token"].endswith(f".{SEQ}")
    assert "no [luck]" in await cli("runs", "show", world.run_id)


async def test_a_run_that_waits_is_cancelled_once(cli: Cli, world: World) -> None:
    run_id = (await cli.json("jobs", "trigger", "refresh"))["run_id"]
    assert await cli("runs", "cancel", run_id) == f"{run_id} is cancelled.\n"
    assert (await cli.json("runs", "show", run_id))["status"] == "cancelled"
    assert "is over already: cancelled" in await cli("runs", "cancel", run_id, code=1)


async def test_a_finished_run_is_replayed(cli: Cli, world: World) -> None:
    again = (await cli.json("runs", "replay", world.run_id))["run_id"]
    assert (await cli.json("runs", "show", again))["reason"] == "replay"
    assert "is not over yet" in await cli("runs", "replay", again, code=1)


async def test_an_unknown_run_is_reported(cli: Cli) -> None:
    assert await cli("runs", "show", "run_x", code=1) == "Error: there is no run run_x\n"


async def test_a_dead_letter_is_listed_and_dismissed(cli: Cli, world: World) -> None:
    (letter,) = await cli.json("dead-letters", "list", "--job", "refresh")
    assert (letter["run_id"], letter["name"], letter["reason"]) == (world.run_id, "refresh", "exhausted")
    assert "no [luck]" in await cli("dead-letters", "list")
    assert await cli("dead-letters", "dismiss", world.run_id) == "Dismissed 1.\n"
    assert await cli("dead-letters", "list") == "No dead letters.\n"
    assert "there is no dead letter" in await cli("dead-letters", "dismiss", world.run_id, code=1)


@pytest.mark.parametrize("how", ["one", "all", "all of a job"])
async def test_a_dead_letter_is_replayed(cli: Cli, world: World, how: str) -> None:
    arguments = {"one": (world.run_id,), "all": ("--all",), "all of a job": ("--all", "--job", "refresh")}[how]
    (replayed,) = await cli.json("dead-letters", "replay", *arguments)
    assert (await cli.json("runs", "show", replayed["run_id"]))["reason"] == "replay"
    assert await cli.json("dead-letters", "list") == []


async def test_which_dead_letters_to_replay_must_be_said_one_way(cli: Cli, world: World) -> None:
    for arguments in ((), (world.run_id, "--all")):
        assert "give the ids of runs, or --all" in await cli("dead-letters", "replay", *arguments, code=2)


async def test_a_replay_in_the_background_is_listed_shown_and_cancelled(cli: Cli, world: World) -> None:
    filters = ("--job", "refresh", "--error", "LUCK", "--rate", "5", "--background")
    replay_id = (await cli.json("dead-letters", "replay", *filters))["replay_id"]
    (listed,) = await cli.json("replays", "list")
    assert (listed["replay_id"], listed["status"], listed["rate_per_second"]) == (replay_id, "running", 5)
    assert replay_id in await cli("replays", "list")
    shown = await cli.json("replays", "show", replay_id)
    assert (shown["remaining"], shown["filter"]["error"]) == (1, "LUCK")
    assert "LUCK" in await cli("replays", "show", replay_id)
    assert await cli("replays", "cancel", replay_id) == f"{replay_id} is cancelled: it replayed 0.\n"
    assert "is over already: cancelled" in await cli("replays", "cancel", replay_id, code=1)


async def test_a_filter_chooses_the_dead_letters_to_replay(cli: Cli, world: World) -> None:
    assert await cli("dead-letters", "replay", "--error", "something else") == "Replayed 0.\n"
    assert await cli("dead-letters", "replay", "--error", "no [luck]") == "Replayed 1.\n"


async def test_a_replay_whose_rest_cannot_go_on_replays_nothing(cli: Cli, connection: asyncpg.Connection) -> None:
    await connection.execute("UPDATE tenants SET submits_per_second = 1, submit_burst = 5")
    await World(connection, await cli.json("jobs", "add", "refresh", "* * * * *", "--handler", "h")).fill()
    await connection.execute(
        "INSERT INTO dead_letters SELECT job_id, fire_at - n * interval '1 s', tenant_id, lane_id, seq, died_at,"
        " spec_version, attempt, reason FROM dead_letters CROSS JOIN generate_series(1, 50) AS n"
    )
    # As many as a tenant may have.
    await connection.execute(
        "INSERT INTO replays (tenant_id, created_at, next_batch_at, died_from, reached_died_at, reached_job_id,"
        " reached_fire_at, rate_per_second, queue, actor)"
        " SELECT 1, now(), 'infinity', now(), now(), 1, now(), 1, n::text, '' FROM generate_series(1, 100) AS n"
    )
    assert "100" in await cli("dead-letters", "replay", "--all", code=1)
    counts = [
        await connection.fetchval(f"SELECT count(*) FROM {table}") for table in ("dead_letters", "requested_runs")
    ]
    assert counts == [51, 0]
