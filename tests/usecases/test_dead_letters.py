"""Dead letters: listed, replayed, dismissed."""

import pytest

from evertick.domain.errors import InvalidInput
from evertick.store.outcomes import Dead
from evertick.usecases.context import Tenant
from evertick.usecases.dead_letters import Chosen, dismiss, list_letters, replay_letters
from evertick.usecases.errors import JobNotFound, LetterNotFound
from evertick.usecases.lifecycle import delete
from evertick.usecases.requests import replay_letter
from evertick.usecases.runs import get_run
from evertick.usecases.views import Job
from usecases.world import World, at


async def bury(world: World, job_count: int = 1, ticks: int = 3) -> list[Job]:
    """Jobs whose first ticks all died, each at its minute."""
    jobs = [await world.minutely(name=f"job {number}") for number in range(job_count)]
    for minute in range(1, ticks + 1):
        await world.set_clock(at(minute))
        await world.fire()
        await world.record(await world.lease(), "failed", Dead(1, "exhausted"), code=503)
    return jobs


async def test_letters_are_listed_newest_first_with_what_killed_them(world: World, tenant: Tenant) -> None:
    (job,) = await bury(world)
    page = await list_letters(tenant)
    assert [letter.scheduled_at for letter in page.items] == [at(3), at(2), at(1)]
    letter = page.items[0]
    assert (letter.name, letter.job_id, letter.died_at, letter.attempt) == ("job 0", job.job_id, at(3), 1)
    assert (letter.reason, letter.result_code, letter.error) == ("exhausted", 503, "it broke")
    assert (await list_letters(world.tenant(2))).items == ()


async def test_letters_come_in_pages(world: World, tenant: Tenant) -> None:
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


async def test_a_replayed_letter_is_gone_and_its_run_comes_again(world: World, tenant: Tenant) -> None:
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


async def test_many_letters_are_replayed_as_chosen_and_at_the_callers_pace(world: World, tenant: Tenant) -> None:
    jobs = await bury(world, job_count=2)
    assert len(await replay_letters(tenant, Chosen(job_id=jobs[0].job_id, died_from=at(2)), 9)) == 2
    assert len(await replay_letters(tenant, Chosen(died_before=at(2)), 9)) == 2
    await delete(tenant, jobs[0].job_id)
    assert len(await replay_letters(tenant, Chosen(), 1)) == 1
    assert [letter.scheduled_at for letter in (await list_letters(tenant)).items] == [at(2)]
    assert len(await replay_letters(tenant, Chosen(), 9)) == 1
    assert await replay_letters(tenant, Chosen(), 9) == []


async def test_letters_of_a_deleted_job_are_only_left_to_dismiss(world: World, tenant: Tenant) -> None:
    (job,) = await bury(world, ticks=1)
    await delete(tenant, job.job_id)
    (letter,) = (await list_letters(tenant)).items
    assert await replay_letters(tenant, Chosen(), 9) == []
    with pytest.raises(JobNotFound):
        await replay_letter(tenant, letter.run_id)
    with pytest.raises(LetterNotFound):
        await dismiss(world.tenant(2), letter.run_id)
    await dismiss(tenant, letter.run_id)
    assert (await list_letters(tenant)).items == ()
    assert (await get_run(tenant, letter.run_id)).run.status == "dead"
    with pytest.raises(LetterNotFound):
        await dismiss(tenant, letter.run_id)
