"""Dead letters: listed, replayed, dismissed."""

import json

import pytest
from msgspec import UNSET

from evertick.contract.job import Job
from evertick.contract.runs import LetterFilter
from evertick.domain.errors import InvalidInput
from evertick.domain.job.checks import Json
from evertick.domain.retry import GiveUp, GiveUpReason
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import JobNotFound, LetterNotFound
from evertick.usecases.jobs.edit import edit
from evertick.usecases.jobs.lifecycle import delete
from evertick.usecases.runs import dead_letters
from evertick.usecases.runs.dead_letters import dismiss, list_letters, replay_letters
from evertick.usecases.runs.reading import get_run
from evertick.usecases.runs.requests import replay, replay_letter, trigger
from usecases.world import World, at, key_of


async def bury(world: World, job_count: int = 1, ticks: int = 3) -> list[Job]:
    """Jobs whose first ticks all died, each at its minute."""
    jobs = [await world.minutely(name=f"job {number}") for number in range(job_count)]
    for minute in range(1, ticks + 1):
        await world.set_clock(at(minute))
        await world.fire()
        await world.record(await world.lease(), "failed", GiveUp(1, GiveUpReason.EXHAUSTED), code=503)
    return jobs


async def test_letters_are_listed_newest_first_with_what_killed_them(world: World, tenant: TenantContext) -> None:
    (job,) = await bury(world)
    page = await list_letters(tenant)
    assert [letter.scheduled_at for letter in page.items] == [at(3), at(2), at(1)]
    letter = page.items[0]
    assert (letter.name, letter.job_id, letter.died_at, letter.attempt) == ("job 0", job.job_id, at(3), 1)
    assert (letter.reason, letter.result_code, letter.error) == ("exhausted", 503, "it broke")
    assert (await list_letters(world.tenant(2))).items == ()


async def test_letters_come_in_pages(world: World, tenant: TenantContext) -> None:
    jobs = await bury(world, job_count=2)
    whole = (await list_letters(tenant)).items
    assert len(whole) == 6
    found: list[object] = []
    cursor = None
    for _ in range(3):
        page = await list_letters(tenant, limit=2, cursor=cursor)
        found += page.items
        cursor = page.next
    assert (tuple(found), cursor) == (whole, None)
    own = await list_letters(tenant, job_id=jobs[0].job_id)
    assert {letter.job_id for letter in own.items} == {jobs[0].job_id}
    with pytest.raises(InvalidInput, match="cursor"):
        await list_letters(tenant, cursor="12.run_1")


async def test_a_replayed_letter_is_gone_and_its_run_comes_again(world: World, tenant: TenantContext) -> None:
    await bury(world, ticks=1)
    (letter,) = (await list_letters(tenant)).items
    # As after the ledger's retention: the letter alone is left.
    await world.connection.execute("DELETE FROM attempts")
    await world.connection.execute("DELETE FROM outcomes")
    new = await replay_letter(tenant, letter.run_id)
    assert (await list_letters(tenant)).items == ()
    (leased,) = await world.run_all()
    assert (leased.reason, leased.replays_at) == ("replay", at(1))
    assert (await get_run(tenant, new)).run.status == "success"
    with pytest.raises(LetterNotFound):
        await replay_letter(tenant, letter.run_id)


@pytest.mark.parametrize("how", ["one", "many", "run"])
async def test_a_replay_of_a_replay_keeps_the_identity_of_the_first_run(
    world: World, tenant: TenantContext, how: str
) -> None:
    await bury(world, ticks=1)
    keys = []
    for second in range(1, 4):
        await world.set_clock(at(1, second))
        (letter,) = (await list_letters(tenant)).items
        if how == "many":
            await replay_letters(tenant, LetterFilter(), 100)
        else:
            await (replay_letter if how == "one" else replay)(tenant, letter.run_id)
        await world.fire()
        (leased,) = await world.lease()
        keys.append((leased.replays_at, leased.idempotency_key))
        await world.record([leased], "failed", GiveUp(1, GiveUpReason.EXHAUSTED))
    assert {replayed_at for replayed_at, _ in keys} == {at(1)}
    assert len(set(keys)) == 1


async def test_many_letters_are_replayed_as_chosen(world: World, tenant: TenantContext) -> None:
    jobs = await bury(world, job_count=2)
    assert len((await replay_letters(tenant, LetterFilter(jobs[0].job_id, died_from=at(2)), 100)).runs) == 2
    assert len((await replay_letters(tenant, LetterFilter(died_before=at(2)), 100)).runs) == 2
    assert len((await replay_letters(world.tenant(2), LetterFilter(), 100)).runs) == 0
    assert [letter.job_id for letter in (await list_letters(tenant)).items] == [jobs[1].job_id] * 2
    assert len((await replay_letters(tenant, LetterFilter(), 100)).runs) == 2
    assert (await list_letters(tenant)).items == ()


async def test_letters_are_replayed_at_a_rate_by_whoever_fires_timers(world: World, tenant: TenantContext) -> None:
    (job,) = await bury(world)
    await world.set_clock(at(3, 10))
    replayed = await replay_letters(tenant, LetterFilter(), 0.5)
    due_ats = sorted(run.due_at for run in replayed.runs)
    assert (due_ats, replayed.last_due_at) == ([at(3, 10), at(3, 12), at(3, 14)], at(3, 14))
    assert [(await get_run(tenant, run_id)).run.status for run_id in replayed.run_ids] == ["pending"] * 3
    assert world.woken[-1] == key_of(job)
    seen = []
    for second in (10, 11, 12, 13, 14):
        await world.set_clock(at(3, second))
        seen.append([leased.replays_at for leased in await world.run_all()])
    assert seen == [[at(3)], [], [at(2)], [], [at(1)]]


async def test_a_replayed_letter_has_the_payload_of_its_run(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(payload={"of": "the job"})
    own: Json = {"of": "the run"}
    for payload in (own, UNSET):
        await trigger(tenant, job.job_id, payload)
        await world.fire()
        await world.record(await world.lease(), "failed", GiveUp(1, GiveUpReason.EXHAUSTED))
    await edit(tenant, job.job_id, {"payload": {"of": "a later version"}})
    await replay_letters(tenant, LetterFilter(), 1000)
    await world.set_clock(at(0, 40))
    payloads = [json.loads(leased.payload or "") for leased in await world.run_all()]
    assert sorted(payload["of"] for payload in payloads) == ["the job", "the run"]


async def test_more_letters_than_one_transaction_takes_are_left_and_told(
    world: World, tenant: TenantContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bury(world, job_count=3)
    await world.set_clock(at(3, 10))
    monkeypatch.setattr(dead_letters, "BATCH_SIZE", 2)
    monkeypatch.setattr(dead_letters, "MAX_REPLAYS", 6)
    first = await replay_letters(tenant, LetterFilter(), 1)
    assert (len(first.runs), first.has_more, len({run.due_at for run in first.runs})) == (6, True, 6)
    await world.set_clock(at(3, 30))
    rest = await replay_letters(tenant, LetterFilter(), 1)
    assert (len(rest.runs), rest.has_more) == (3, False)
    assert len({*first.run_ids, *rest.run_ids}) == 9


async def test_a_letter_whose_instant_is_taken_gets_the_next_one(world: World, tenant: TenantContext) -> None:
    await bury(world)  # the clock stands where the last tick has run
    replayed = await replay_letters(tenant, LetterFilter(), 1000)
    assert (len(replayed.runs), replayed.has_more) == (3, False)
    assert at(3) not in {run.fire_at for run in replayed.runs}


async def test_letters_of_a_deleted_job_are_only_left_to_dismiss(world: World, tenant: TenantContext) -> None:
    (job,) = await bury(world, ticks=1)
    await delete(tenant, job.job_id)
    (letter,) = (await list_letters(tenant)).items
    assert (await replay_letters(tenant, LetterFilter(), 100)).runs == []
    with pytest.raises(JobNotFound):
        await replay_letter(tenant, letter.run_id)
    with pytest.raises(LetterNotFound):
        await dismiss(world.tenant(2), letter.run_id)
    await dismiss(tenant, letter.run_id)
    assert (await list_letters(tenant)).items == ()
    assert (await get_run(tenant, letter.run_id)).run.status == "dead"
    with pytest.raises(LetterNotFound):
        await dismiss(tenant, letter.run_id)
