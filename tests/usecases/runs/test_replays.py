"""Replays of many dead letters: worked off in batches at a rate, by any janitor, from where the last one stopped."""

import asyncio
import itertools
from collections.abc import Sequence
from datetime import timedelta

import pytest

from evertick.contract.job import Job
from evertick.contract.runs import LetterFilter
from evertick.domain.errors import InvalidInput
from evertick.domain.rate_bucket import Drawn, Rate
from evertick.roles.janitor import replayer
from evertick.roles.janitor.replayer import Replayer
from evertick.store.database import Pool
from evertick.store.engine.rate_buckets import Ask, DatabaseBuckets, submit_key
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import ReplayFinished, ReplayNotFound, TooManyReplays
from evertick.usecases.jobs.lifecycle import delete
from evertick.usecases.runs import dead_letters, replays
from evertick.usecases.runs.dead_letters import dismiss, list_letters
from usecases.runs.test_dead_letters import bury
from usecases.world import World, at, key_of

BY = "key_1"


async def work_off(pool: Pool, most: int = 1000) -> int:
    """Batches of one janitor until none is due; how many runs they made."""
    janitor = Replayer(pool)
    made = 0
    for _ in range(most):
        result = await janitor.replay_batch()
        if result is None:
            break
        made += result.replayed
    return made


async def test_a_replay_makes_runs_at_its_rate_and_ends(world: World, tenant: TenantContext) -> None:
    await bury(world)
    await world.set_clock(at(3, 10))
    replay_id = await replays.start(tenant, LetterFilter(), 0.8, BY)
    made = []
    for second in range(10, 17):
        await world.set_clock(at(3, second))
        made.append(await work_off(world.pool))
    # Each is made in time for its turn, though the janitor looks once a second: 1.25 seconds after the one before.
    assert made == [1, 1, 1, 0, 0, 0, 0]
    dues = await world.connection.fetch("SELECT due_at FROM timers WHERE kind = 'replay' ORDER BY due_at")
    assert [row["due_at"] for row in dues] == [at(3, 10) + number * timedelta(seconds=1.25) for number in range(3)]
    shown = await replays.get(tenant, replay_id)
    assert (shown.status, shown.replayed, shown.looked_at, shown.remaining) == ("done", 3, 3, 0)
    assert (shown.created_by, shown.next_batch_at, shown.finished_at) == (BY, None, at(3, 12))
    assert {leased.reason for leased in await world.run_all()} >= {"replay"}
    assert (await list_letters(tenant)).items == ()


async def test_what_died_after_a_replay_began_is_not_part_of_it(world: World, tenant: TenantContext) -> None:
    await bury(world, ticks=1)
    await replays.start(tenant, LetterFilter(), 1, BY)
    await world.connection.execute(
        "INSERT INTO dead_letters SELECT job_id, fire_at + interval '1 s', tenant_id, lane_id, seq,"
        " died_at + interval '1 s', spec_version, attempt, reason FROM dead_letters"
    )
    for second in range(10):
        await world.set_clock(at(1, second))
        await work_off(world.pool)
    (left,) = (await list_letters(tenant)).items
    assert left.died_at == at(1, 1)


async def label(world: World, job: Job, **labels: str) -> None:
    text = "{" + ",".join(f'"{name}": "{value}"' for name, value in labels.items()) + "}"
    await world.connection.execute("UPDATE jobs SET labels = $2 WHERE job_id = $1", key_of(job), text)


@pytest.mark.parametrize(
    "chosen",
    [
        LetterFilter(error="BROKE of job 1"),
        LetterFilter(queue="other"),
        LetterFilter(label="team:growth"),
        LetterFilter(label="team:growth", error="broke", queue="other"),
    ],
)
async def test_letters_are_chosen_by_error_queue_and_label(
    world: World, tenant: TenantContext, chosen: LetterFilter
) -> None:
    first, second = await bury(world, job_count=2, ticks=2)
    await label(world, first, team="sales")
    await label(world, second, team="growth", tier="1")
    await world.connection.execute("UPDATE jobs SET queue = 'other' WHERE job_id = $1", key_of(second))
    await world.connection.execute("INSERT INTO queues (tenant_id, name) VALUES (1, 'other')")
    await world.connection.execute(
        "UPDATE outcomes SET error = 'it broke of job ' || CASE WHEN job_id = $1 THEN 1 ELSE 0 END"
        " FROM attempts WHERE attempts.lane_id = outcomes.lane_id AND attempts.seq = outcomes.seq",
        key_of(second),
    )
    replay_id = await replays.start(tenant, chosen, 100, BY)
    assert (await replays.get(tenant, replay_id)).remaining == 2
    assert await work_off(world.pool) == 2
    assert {letter.job_id for letter in (await list_letters(tenant)).items} == {first.job_id}
    # The same letters are chosen by a request.
    assert (await dead_letters.replay_letters(tenant, chosen, 100)).runs == []
    assert len((await dead_letters.replay_letters(tenant, LetterFilter(error="it broke"), 100)).runs) == 2


async def test_a_batch_that_is_cut_off_leaves_neither_runs_nor_progress(
    world: World, tenant: TenantContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bury(world, job_count=2)
    await world.set_clock(at(3, 10))
    replay_id = await replays.start(tenant, LetterFilter(), 2, BY)
    assert (await Replayer(world.pool).replay_batch() or pytest.fail("none is due")).replayed == 2
    # From here on the second statement after the runs were made fails, as if the process were killed.
    await world.connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'killed'; END $$;"
        "CREATE TRIGGER refuse BEFORE UPDATE OF replayed ON replays FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    await world.set_clock(at(3, 11))
    (result,) = [await Replayer(world.pool).replay_batch()]
    assert result is not None
    assert result.replayed == 0
    assert (await replays.get(tenant, replay_id)).replayed == 2
    assert len((await list_letters(tenant)).items) == 4
    await world.connection.execute("DROP TRIGGER refuse ON replays")
    for second in range(12, 40):
        await world.set_clock(at(3, second))
        await work_off(world.pool)
    shown = await replays.get(tenant, replay_id)
    assert (shown.status, shown.replayed) == ("done", 6)
    assert list(await world.count("requested_runs", "dead_letters")) == [6, 0]


async def test_janitors_at_the_same_time_replay_no_letter_twice(world: World, tenant: TenantContext) -> None:
    await bury(world, job_count=4, ticks=5)
    await world.set_clock(at(5, 10))
    for filtered in (LetterFilter(), LetterFilter(error="broke"), LetterFilter(queue="mail")):
        await replays.start(tenant, filtered, 1000, BY)
    made = await asyncio.gather(*(work_off(world.pool) for _ in range(4)))
    assert sum(made) == 20
    assert list(await world.count("requested_runs", "dead_letters")) == [20, 0]
    assert {replay.status for replay in (await replays.list_replays(tenant)).items} <= {"done", "running"}


async def test_a_letter_whose_job_a_user_has_locked_waits_and_others_go_on(world: World, tenant: TenantContext) -> None:
    first, second = await bury(world, job_count=2, ticks=1)
    await world.set_clock(at(3, 10))
    blocked = await replays.start(tenant, LetterFilter(job_id=first.job_id), 1, BY)
    free = await replays.start(tenant, LetterFilter(job_id=second.job_id), 1, BY)
    async with world.connection.transaction():
        await world.connection.execute("SELECT FROM jobs WHERE job_id = $1 FOR UPDATE", key_of(first))
        assert await work_off(world.pool) == 1
    assert [(await replays.get(tenant, each)).status for each in (blocked, free)] == ["running", "done"]
    await world.set_clock(at(3, 11))
    assert await work_off(world.pool) == 1
    assert (await replays.get(tenant, blocked)).status == "done"


async def test_a_filter_that_fits_few_looks_at_a_limited_number_in_each_batch(
    world: World, tenant: TenantContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayer, "MAX_LOOKED_AT", 2)
    await bury(world, job_count=2)
    await world.connection.execute("UPDATE outcomes SET error = 'rare' WHERE seq = (SELECT min(seq) FROM dead_letters)")
    replay_id = await replays.start(tenant, LetterFilter(error="rare"), 100, BY)
    results = [await Replayer(world.pool).replay_batch() for _ in range(5)]
    assert [result and result.replayed for result in results] == [0, 0, 1, 0, None]
    assert (await replays.get(tenant, replay_id)).looked_at == 6


async def test_a_cancelled_replay_leaves_the_other_letters(world: World, tenant: TenantContext) -> None:
    await bury(world)
    replay_id = await replays.start(tenant, LetterFilter(), 0.5, BY)
    assert await work_off(world.pool) == 1
    cancelled = await replays.cancel(tenant, replay_id)
    assert (cancelled.status, cancelled.replayed, cancelled.remaining) == ("cancelled", 1, 0)
    await world.set_clock(at(9))
    assert await work_off(world.pool) == 0
    assert len((await list_letters(tenant)).items) == 2
    with pytest.raises(ReplayFinished, match="cancelled"):
        await replays.cancel(tenant, replay_id)


async def test_letters_that_are_gone_and_jobs_that_were_deleted_make_no_runs(
    world: World, tenant: TenantContext
) -> None:
    first, second = await bury(world, job_count=2, ticks=2)
    letters = (await list_letters(tenant, job_id=second.job_id)).items
    replay_id = await replays.start(tenant, LetterFilter(), 100, BY)
    await dismiss(tenant, letters[0].run_id)
    await delete(tenant, first.job_id)
    assert await work_off(world.pool) == 1
    assert (await replays.get(tenant, replay_id)).status == "done"


async def test_a_replay_stays_within_the_rate_of_its_tenant(world: World, tenant: TenantContext) -> None:
    await bury(world, job_count=4)
    await world.connection.execute("UPDATE tenants SET submits_per_second = 4, submit_burst = 4 WHERE tenant_id = 1")
    await replays.start(tenant, LetterFilter(died_before=at(2)), 1000, BY)
    await replays.start(tenant, LetterFilter(died_from=at(2)), 1000, BY)
    made = []
    for second in range(4):
        await world.set_clock(at(4, second))
        made.append(await work_off(world.pool))
    # Both draw from one bucket.
    assert made == [4, 4, 4, 0]


async def test_what_is_replayed_in_the_background_is_missing_for_submissions(
    world: World, tenant: TenantContext
) -> None:
    await bury(world)
    await world.connection.execute("UPDATE tenants SET submits_per_second = 1, submit_burst = 5 WHERE tenant_id = 1")
    await replays.start(tenant, LetterFilter(), 1000, BY)
    assert await work_off(world.pool) == 2  # one for now, and one for the next second
    drawn = await DatabaseBuckets(world.pool).draw([Ask(submit_key(1), Rate(1, 5), 1, 100)])
    assert drawn == [Drawn(5 - 2)]
    await world.set_clock(at(3, 1))
    assert await work_off(world.pool) == 1


async def test_a_replay_goes_on_as_soon_as_its_tenant_may_submit_again(world: World, tenant: TenantContext) -> None:
    await bury(world)
    await world.connection.execute("UPDATE tenants SET submits_per_second = 10, submit_burst = 1 WHERE tenant_id = 1")
    await replays.start(tenant, LetterFilter(), 1000, BY)
    assert await Replayer(world.pool).step() == pytest.approx(0.1)


class BusyBuckets:
    """Buckets from which others are drawing all the time."""

    async def draw(self, asks: Sequence[Ask]) -> list[Drawn | None]:
        return [None] * len(asks)


async def test_a_replay_waits_while_others_draw_from_the_bucket(world: World, tenant: TenantContext) -> None:
    await bury(world)
    replay_id = await replays.start(tenant, LetterFilter(), 1000, BY)
    janitor = Replayer(world.pool, BusyBuckets())
    assert [await janitor.replay_batch() is None for _ in range(2)] == [False, True]
    assert (await replays.get(tenant, replay_id)).remaining == 3
    await world.set_clock(at(3, 1))
    assert await work_off(world.pool) == 3


async def test_a_tenant_over_its_storage_quota_gets_no_replays_until_it_has_room(
    world: World, tenant: TenantContext
) -> None:
    await bury(world)
    await world.connection.execute("UPDATE tenants SET storage_quota_bytes = 100 WHERE tenant_id = 1")
    replay_id = await replays.start(tenant, LetterFilter(), 1000, BY)
    assert await work_off(world.pool) == 0
    shown = await replays.get(tenant, replay_id)
    assert (shown.status, shown.remaining, shown.next_batch_at) == ("running", 3, at(3, 10))
    await world.connection.execute("UPDATE tenants SET storage_quota_bytes = 1000000 WHERE tenant_id = 1")
    await world.set_clock(at(3, 10))
    assert await work_off(world.pool) == 3


async def test_replays_are_listed_newest_first_in_pages_for_their_tenant_alone(
    world: World, tenant: TenantContext
) -> None:
    made = []
    for number in range(5):
        await world.set_clock(at(1, number))
        made.append(await replays.start(tenant, LetterFilter(queue=f"q{number}"), 1, BY))
    seen: list[str] = []
    cursor = None
    for _ in range(3):
        page = await replays.list_replays(tenant, limit=2, cursor=cursor)
        seen += [replay.replay_id for replay in page.items]
        cursor = page.next
    assert (seen, cursor) == (made[::-1], None)
    other = world.tenant(2)
    assert (await replays.list_replays(other)).items == ()
    for call in (replays.get, replays.cancel):
        with pytest.raises(ReplayNotFound):
            await call(other, made[0])
        with pytest.raises(ReplayNotFound):
            await call(tenant, "rpl_nonsense")
    with pytest.raises(InvalidInput, match="cursor"):
        await replays.list_replays(tenant, cursor="run_1")


async def test_the_same_replay_is_started_once_and_a_tenant_has_few_at_a_time(
    world: World, tenant: TenantContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "MAX_RUNNING", 2)
    first = await replays.start(tenant, LetterFilter(error="x"), 1, BY)
    assert await replays.start(tenant, LetterFilter(error="x"), 5, BY) == first
    assert await replays.start(tenant, LetterFilter(), 1, BY) != first
    with pytest.raises(TooManyReplays):
        await replays.start(tenant, LetterFilter(error="y"), 1, BY)
    await replays.cancel(tenant, first)
    assert await replays.start(tenant, LetterFilter(error="x"), 1, BY) != first


async def test_what_a_request_could_not_replay_goes_on_after_its_last_run(
    world: World, tenant: TenantContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bury(world)
    await world.set_clock(at(3, 10))
    allowance = itertools.chain([2], itertools.repeat(0))

    async def admitted(_: int) -> int:
        return next(allowance)

    done = await dead_letters.replay_letters(tenant, LetterFilter(), 0.5, admitted)
    replay_id = await replays.start_rest(tenant, done, LetterFilter(), 0.5, BY)
    assert (len(done.runs), done.last_due_at, done.has_more) == (2, at(3, 12), True)
    assert replay_id is not None
    assert (await replays.get(tenant, replay_id)).remaining == 1
    assert await work_off(world.pool) == 0
    await world.set_clock(at(3, 14))
    assert await work_off(world.pool) == 1
    all_done = await dead_letters.replay_letters(tenant, LetterFilter(), 1)
    assert await replays.start_rest(tenant, all_done, LetterFilter(), 1, BY) is None


async def test_letters_that_died_since_a_replay_with_the_same_filter_began_are_replayed(
    world: World, tenant: TenantContext
) -> None:
    await bury(world)
    await world.set_clock(at(3, 10))
    first = await replays.start(tenant, LetterFilter(), 100, BY)
    await world.connection.execute("UPDATE replays SET reached_died_at = '1970-01-02'")  # it has seen all
    assert await replays.start(tenant, LetterFilter(), 100, BY) == first
    assert await work_off(world.pool) == 3
