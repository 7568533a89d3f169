"""Keys and limits of jobs as their owners meet them: how many runs are at work at once, and in which order."""

from datetime import timedelta
from typing import Any

import pytest

from evertick.contract.job import Job
from evertick.contract.runs import LetterFilter, Run
from evertick.domain.errors import InvalidFields
from evertick.domain.ids import Prefix, format_id
from evertick.domain.job.checks import Json
from evertick.domain.policies import Missed
from evertick.domain.retry import GiveUp, GiveUpReason, Retry
from evertick.store.engine.lanes import Leased
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.edit import edit
from evertick.usecases.jobs.lifecycle import delete, pause, resume
from evertick.usecases.runs import pull_workers
from evertick.usecases.runs.dead_letters import replay_letters
from evertick.usecases.runs.reading import get_run, job_runs, tenant_runs
from evertick.usecases.runs.requests import cancel, replay, trigger
from usecases.world import WORKER, World, at, key_of

ACCOUNT = "{{payload.account}}"
LATER = Retry(2, timedelta(hours=1))
DEAD = GiveUp(1, GiveUpReason.EXHAUSTED)


async def manual(tenant: TenantContext, **fields: Any) -> Job:
    return await create(tenant, {"schedule": "manual", "target": WORKER, **fields})


async def leased_of(world: World) -> list[Leased]:
    """What a round of firing lets begin."""
    await world.fire()
    return await world.lease()


async def fire_all(world: World) -> None:
    """Until nothing is due: one timer of a job fires in a round."""
    while await world.fire():
        pass


async def test_a_limit_holds_for_ticks_triggers_and_replays_of_a_job(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(max_running=2, concurrent_policy="ALLOW", max_concurrent=9)
    first = await trigger(tenant, job.job_id)
    await world.run_all()
    await world.set_clock(at(1))
    await replay(tenant, first)
    await trigger(tenant, job.job_id)
    await trigger(tenant, job.job_id)
    await fire_all(world)
    done = []
    while leased := await world.lease():
        done.append(await world.record(leased))
    assert done == [2, 2]


async def test_replays_of_runs_without_a_payload_of_their_own_wait_too(world: World, tenant: TenantContext) -> None:
    for fields in ({"max_running": 1}, {"concurrency_key": "db"}):
        job = await manual(tenant, **fields)
        run_id = await trigger(tenant, job.job_id)
        await world.run_all()
        for _ in range(3):
            await replay(tenant, run_id)
        await fire_all(world)
        leased = await world.lease()
        assert len(leased) == 1
        await world.record(leased)
        await world.record(await world.lease())
        await world.record(await world.lease())


async def test_replayed_dead_letters_share_the_limit(world: World, tenant: TenantContext) -> None:
    job = await manual(tenant, concurrency_key=ACCOUNT)
    for _ in range(2):
        await trigger(tenant, job.job_id, {"account": "a"})
        await world.record(await leased_of(world), "failed", DEAD)
    await replay_letters(tenant, LetterFilter(), 100)
    await world.set_clock(at(5))
    await fire_all(world)
    assert len(await world.lease()) == 1


async def test_a_replay_has_no_gate_if_its_job_has_none_any_more(world: World, tenant: TenantContext) -> None:
    job = await manual(tenant, max_running=1)
    run_id = await trigger(tenant, job.job_id)
    await world.run_all()
    await edit(tenant, job.job_id, {"max_running": None})
    for _ in range(2):
        await replay(tenant, run_id)
    await fire_all(world)
    assert len(await world.lease()) == 2


async def test_a_replay_of_a_run_from_before_the_limit_passes_the_gate(world: World, tenant: TenantContext) -> None:
    job = await manual(tenant)
    run_id = await trigger(tenant, job.job_id)
    await world.run_all()
    await edit(tenant, job.job_id, {"max_running": 1, "target": {**WORKER, "queue": "another"}})
    for _ in range(2):
        await replay(tenant, run_id)
    await fire_all(world)
    assert len(await world.lease()) == 1


@pytest.mark.parametrize("repeated", ["run", "letter"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"concurrency_key": "db"}, {"concurrency_key": None, "max_running": 1}),
        ({"max_running": 1}, {"concurrency_key": "db"}),
        ({"concurrency_key": "old"}, {"concurrency_key": "db"}),
    ],
)
async def test_a_replay_of_a_run_with_another_key_passes_the_gate_of_its_job(
    world: World, tenant: TenantContext, before: dict[str, Json], after: dict[str, Json], repeated: str
) -> None:
    job = await manual(tenant, **before)
    run_id = await trigger(tenant, job.job_id)
    await world.record(await leased_of(world), *(("failed", DEAD) if repeated == "letter" else ()))
    await edit(tenant, job.job_id, after)
    if repeated == "letter":
        await replay_letters(tenant, LetterFilter(), 100)
    else:
        await replay(tenant, run_id)
    await trigger(tenant, job.job_id)
    await fire_all(world)
    assert len(await world.lease()) == 1


async def test_jobs_that_render_the_same_key_share_its_limit(world: World, tenant: TenantContext) -> None:
    fields: dict[str, Any] = {"concurrency_key": f"account-{ACCOUNT}", "max_running": 1}
    jobs = [await manual(tenant, payload={"account": account}, **fields) for account in ("a", "a", "b", 7, "7")]
    for job in jobs:
        await trigger(tenant, job.job_id)
    payloads = [leased.payload for leased in await leased_of(world)]
    assert payloads.count('{"account":"a"}') == payloads.count('{"account":"b"}') == 1
    assert payloads.count('{"account":7}') + payloads.count('{"account":"7"}') == 1


async def test_a_key_is_rendered_from_the_payload_of_the_run(world: World, tenant: TenantContext) -> None:
    job = await manual(tenant, concurrency_key=ACCOUNT, payload={"account": "a"})
    run_ids = [
        await trigger(tenant, job.job_id),
        await trigger(tenant, job.job_id, {"account": "a"}),
        await trigger(tenant, job.job_id, {"account": "b"}),
    ]
    await fire_all(world)
    assert {leased.payload for leased in await world.lease()} == {'{"account":"a"}', '{"account":"b"}'}
    assert (await get_run(tenant, run_ids[1])).run.status == "pending"


@pytest.mark.parametrize("value", [2**70, 1e22, -0.0, 1.0, 123456789.123456789, "ü", True, 0.1 + 0.2, 2**63, 5e-324])
async def test_a_payload_gives_one_key_however_it_reaches_the_run(
    world: World, tenant: TenantContext, value: Json
) -> None:
    job = await create(
        tenant,
        {"schedule": "0 0 1 1 *", "target": WORKER, "concurrency_key": ACCOUNT, "payload": {"account": value}},
    )
    await trigger(tenant, job.job_id)
    await trigger(tenant, job.job_id, {"account": value})
    await edit(tenant, job.job_id, {"jitter_seconds": 1})
    rows = await world.connection.fetch("SELECT DISTINCT gate_id FROM timers WHERE job_id = $1", key_of(job))
    assert len(rows) == 1


async def test_a_job_that_only_triggers_run_may_leave_its_key_to_their_payloads(
    world: World, tenant: TenantContext
) -> None:
    job = await manual(tenant, concurrency_key=ACCOUNT)
    await trigger(tenant, job.job_id, {"account": "a"})
    assert len(await leased_of(world)) == 1
    with pytest.raises(InvalidFields, match="has no field 'account', which concurrency_key names"):
        await trigger(tenant, job.job_id)


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"concurrency_key": ACCOUNT}, "/payload"),
        ({"ordering_key": ACCOUNT, "payload": {"account": [1]}}, "/payload"),
        ({"ordering_key": "a", "concurrency_key": "a"}, "/ordering_key"),
        ({"ordering_key": "a", "max_running": 1}, "/max_running"),
        ({"concurrency_key": "{{name}}"}, "/concurrency_key"),
        ({"ordering_key": ""}, "/ordering_key"),
        ({"max_running": 0}, "/max_running"),
    ],
)
async def test_a_job_with_a_key_that_cannot_be_used_is_refused(
    tenant: TenantContext, fields: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(InvalidFields) as refused:
        await create(tenant, {"schedule": "* * * * *", "target": WORKER, **fields})
    assert [fault.pointer for fault in refused.value.faults] == [pointer]


async def test_an_edit_that_takes_away_what_the_key_names_is_refused(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(ordering_key=ACCOUNT, payload={"account": "a"})
    with pytest.raises(InvalidFields):
        await edit(tenant, job.job_id, {"payload": {}})


async def test_an_answer_shows_keys_and_limits_in_force(world: World, tenant: TenantContext) -> None:
    plain, shared = await world.minutely(), await world.minutely(concurrency_key="billing")
    assert (plain.max_running, plain.concurrency_key, plain.ordering_key) == (None, None, None)
    assert (shared.max_running, shared.concurrency_key, shared.ordering_key) == (1, "billing", None)
    changed = await edit(tenant, shared.job_id, {"concurrency_key": None, "ordering_key": "billing"})
    assert (changed.max_running, changed.concurrency_key, changed.ordering_key) == (None, None, "billing")


async def test_an_edit_of_a_key_holds_from_the_next_tick_on(world: World, tenant: TenantContext) -> None:
    first, second = [
        await world.minutely(concurrency_key="a", concurrent_policy="ALLOW", max_concurrent=9) for _ in range(2)
    ]
    await world.set_clock(at(1))
    (running,) = await leased_of(world)
    other = second if running.job_id == key_of(first) else first
    await edit(tenant, other.job_id, {"concurrency_key": "b"})
    await world.set_clock(at(2))
    assert [(leased.job_id, leased.fire_at) for leased in await leased_of(world)] == [(key_of(other), at(2))]


async def test_an_edit_of_a_limit_holds_for_runs_that_wait(world: World, tenant: TenantContext) -> None:
    job = await manual(tenant, max_running=1)
    for _ in range(5):
        await trigger(tenant, job.job_id)
    await fire_all(world)
    assert len(await world.lease()) == 1
    await edit(tenant, job.job_id, {"max_running": 3})
    assert await world.sweep() == 2
    await edit(tenant, job.job_id, {"max_running": None})
    assert await world.sweep() == 2


async def test_a_run_with_a_small_limit_does_not_starve_behind_runs_with_a_large_one(
    world: World, tenant: TenantContext
) -> None:
    strict, lax = await manual(tenant, concurrency_key="k"), await manual(tenant, concurrency_key="k", max_running=3)
    for _ in range(2):
        await trigger(tenant, lax.job_id)
    running = await leased_of(world) + await leased_of(world)
    await world.set_clock(at(1))
    await trigger(tenant, strict.job_id)
    await fire_all(world)
    for second in range(1, 9):  # runs of the other job keep coming
        await world.set_clock(at(1, second))
        await trigger(tenant, lax.job_id)
        await fire_all(world)
    await world.record(running)
    assert key_of(strict) in {leased.job_id for leased in await world.lease()}


async def test_runs_with_an_ordering_key_begin_in_the_order_of_their_fire_times(
    world: World, tenant: TenantContext
) -> None:
    jobs = [await manual(tenant, ordering_key="ledger") for _ in range(5)]
    for second, job in enumerate(jobs):
        await world.set_clock(at(1, second))
        await trigger(tenant, job.job_id)
    await fire_all(world)
    begun = []
    while leased := await world.lease():
        begun += [each.job_id for each in leased]
        assert len(leased) == 1
        await world.record(leased)
    assert begun == [key_of(job) for job in jobs]


async def test_a_run_that_waits_for_a_retry_holds_up_its_order_and_not_its_concurrency_key(
    world: World, tenant: TenantContext
) -> None:
    for fields, begun in (({"ordering_key": "k"}, 0), ({"concurrency_key": "k"}, 1)):
        jobs = [await manual(tenant, **fields) for _ in range(2)]
        for job in jobs:
            await trigger(tenant, job.job_id)
        await world.record(await leased_of(world), "failed", LATER)
        assert len(await world.lease()) == begun


async def test_runs_in_back_off_leave_the_gate_to_others(world: World, tenant: TenantContext) -> None:
    jobs = [await world.minutely(concurrency_key="host") for _ in range(4)]
    await world.set_clock(at(1))
    await world.fire()
    succeeded: list[int] = []
    while leased := await world.lease():
        (each,) = leased
        if len(succeeded) < 3:
            await world.record(leased, "failed", LATER)
        else:
            await world.record(leased)
        succeeded.append(each.job_id)
    assert sorted(succeeded) == sorted(key_of(job) for job in jobs)
    await world.set_clock(at(2))
    assert len(await leased_of(world)) == 1


async def test_a_tick_that_waits_longer_than_its_grace_is_not_missed(world: World, tenant: TenantContext) -> None:
    blocking = await manual(tenant, concurrency_key="k")
    await trigger(tenant, blocking.job_id)
    running = await leased_of(world)
    job = await world.minutely(concurrency_key="k", misfire_grace_seconds=1)
    await world.set_clock(at(1))
    await world.fire()
    await world.set_clock(at(1, 59))
    await world.record(running)
    assert [(each.fire_at, each.reason) for each in await world.lease()] == [(at(1), "tick")]
    assert await world.gaps_of(job) == []


async def test_ticks_that_find_a_run_waiting_at_its_key_become_gaps(world: World, tenant: TenantContext) -> None:
    blocking = await manual(tenant, concurrency_key="k")
    await trigger(tenant, blocking.job_id)
    running = await leased_of(world)
    job = await world.minutely(concurrency_key="k")
    for minute in range(1, 5):
        await world.set_clock(at(minute))
        await world.fire()
    assert await world.timers_of(job) == [("tick", at(5), True)]
    assert await world.gaps_of(job) == [(at(2), at(4), 3, "overlap")]
    await world.record(running)
    assert [each.fire_at for each in await world.lease()] == [at(1)]


@pytest.mark.parametrize("word", ["ordering", "concurrency"])
async def test_a_run_says_what_it_waits_for(world: World, tenant: TenantContext, word: str) -> None:
    job = await manual(tenant, **{f"{word}_key": "k"})
    run_ids = [await trigger(tenant, job.job_id) for _ in range(2)]
    await fire_all(world)
    found = (await job_runs(tenant, job.job_id)).items
    assert {each.run_id: each.waiting_for for each in found if isinstance(each, Run)} == {
        run_ids[0]: None,
        run_ids[1]: word,
    }
    assert (await get_run(tenant, run_ids[1])).run.waiting_for == word
    assert {each.run_id: each.waiting_for for each in (await tenant_runs(tenant)).items}[run_ids[1]] == word
    await world.record(await world.lease())
    assert len(await world.lease()) == 1
    shown = (await get_run(tenant, run_ids[1])).run
    assert (shown.waiting_for, shown.status, shown.worker_id) == (None, "running", "worker-1")
    assert {each.status for each in (await tenant_runs(tenant)).items} == {"success", "running"}
    found = (await job_runs(tenant, job.job_id)).items
    assert {each.status for each in found} == {"success", "running"}


async def test_a_retry_that_waits_for_a_place_says_so(world: World, tenant: TenantContext) -> None:
    first, second = [await manual(tenant, concurrency_key="k") for _ in range(2)]
    run_id = await trigger(tenant, first.job_id)
    await world.record(await leased_of(world), "failed", Retry(2, timedelta(minutes=1)))
    await trigger(tenant, second.job_id)
    await world.fire()
    await world.set_clock(at(2))
    await world.fire()
    assert [(each.run_id, each.waiting_for) for each in (await tenant_runs(tenant)).items if each.waiting_for] == [
        (run_id, "concurrency")
    ]


@pytest.mark.parametrize("key", ["ordering_key", "concurrency_key"])
async def test_cancellations_and_deletions_make_room(world: World, tenant: TenantContext, key: str) -> None:
    jobs = [await manual(tenant, **{key: "k"}) for _ in range(5)]
    run_ids = []
    for second, job in enumerate(jobs):
        await world.set_clock(at(1, second))
        run_ids.append(await trigger(tenant, job.job_id))
    await world.fire()
    await cancel(tenant, run_ids[1])  # it waits at the gate
    assert await world.sweep() == 0
    await cancel(tenant, run_ids[0])  # it is inside
    assert await world.sweep() == 1
    (leased,) = [each for each in await world.lease() if not each.is_over]
    assert leased.job_id == key_of(jobs[2])
    await world.record([leased], "failed", LATER)
    if key == "ordering_key":
        await delete(tenant, jobs[2].job_id)  # its run waits for a retry
        assert await world.sweep() == 1
    assert [each.job_id for each in await world.lease()] == [key_of(jobs[3])]


async def test_an_earlier_run_that_was_not_fired_yet_comes_first_and_holds_nobody_up_once_cancelled(
    world: World, tenant: TenantContext
) -> None:
    first, second = [await manual(tenant, ordering_key="k") for _ in range(2)]
    run_id = await trigger(tenant, first.job_id)
    await world.set_clock(at(1))
    await trigger(tenant, second.job_id)
    await world.fire([each for each in await world.plan() if each[1] == [key_of(second)]])
    assert await world.lease() == []
    await cancel(tenant, run_id)
    assert await world.sweep() == 1


async def test_a_tick_that_replaces_the_running_one_takes_its_turn(world: World, tenant: TenantContext) -> None:
    replacing = await world.minutely(ordering_key="k", concurrent_policy="REPLACE")
    others = [await manual(tenant, ordering_key="k") for _ in range(2)]
    await world.set_clock(at(1))
    await leased_of(world)
    for other in others:
        await trigger(tenant, other.job_id)
    await world.set_clock(at(2))
    await fire_all(world)
    begun = []
    while leased := [each for each in await world.lease() if not each.is_over]:
        begun += [each.job_id for each in leased]
        await world.record(leased)
    assert begun == [*(key_of(other) for other in others), key_of(replacing)]


async def test_a_replay_keeps_the_key_of_the_run_that_it_repeats(world: World, tenant: TenantContext) -> None:
    job = await manual(tenant, concurrency_key=ACCOUNT)
    run_id = await trigger(tenant, job.job_id, {"account": "a"})
    await world.run_all()
    await trigger(tenant, job.job_id, {"account": "a"})
    await world.fire()
    again = await replay(tenant, run_id)
    await world.fire()
    assert (await get_run(tenant, again)).run.waiting_for == "concurrency"


async def test_a_paused_job_is_in_no_order_and_has_its_place_again_once_resumed(
    world: World, tenant: TenantContext
) -> None:
    first = await world.minutely(ordering_key="k", concurrent_policy="QUEUE")
    second = await manual(tenant, ordering_key="k")
    await pause(tenant, first.job_id)
    await world.set_clock(at(1, 30))
    await trigger(tenant, second.job_id)
    running = await leased_of(world)
    assert [each.job_id for each in running] == [key_of(second)]
    await trigger(tenant, second.job_id)
    await world.fire()
    await resume(tenant, first.job_id, Missed.RUN_ALL)
    await world.record(running)
    assert [each.job_id for each in await leased_of(world)] == [key_of(first)]


async def test_ticks_of_two_pauses_run_each_once_in_their_order(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(ordering_key="k")
    await pause(tenant, job.job_id)
    await world.set_clock(at(3, 30))
    await resume(tenant, job.job_id, Missed.RUN_ALL)
    await world.fire()
    await pause(tenant, job.job_id)
    await world.set_clock(at(6, 30))
    await resume(tenant, job.job_id, Missed.RUN_ALL)
    begun = []
    for number in range(20):
        await world.set_clock(at(6, 31) + number * timedelta(seconds=1))
        await world.fire()
        leased = await world.lease()
        begun += [each.fire_at for each in leased]
        await world.record(leased)
    assert begun == [at(minute) for minute in range(1, 7)]


@pytest.mark.parametrize("gate", [{}, {"ordering_key": "k"}, {"concurrency_key": "k"}])
async def test_two_jobs_that_catch_up_at_one_gate_run_all_they_missed(
    world: World, tenant: TenantContext, gate: dict[str, Any]
) -> None:
    fields = {"missed_window": "RUN_ALL", "misfire_grace_seconds": 1, **gate}
    first = await world.minutely(**fields)
    second = await create(tenant, {"schedule": "1-59 * * * *", "target": WORKER, **fields})
    begun: dict[int, list[object]] = {key_of(first): [], key_of(second): []}
    order = []
    for number in range(40):
        await world.set_clock(at(5, 30) + number * timedelta(seconds=0.4))
        await world.fire()
        leased = await world.lease()
        for each in leased:
            begun[each.job_id].append(each.fire_at)
            order.append(each.fire_at)
        await world.record(leased)
    assert all(each == [at(minute) for minute in range(1, 6)] for each in begun.values())
    if "ordering_key" in gate:
        assert order == sorted(order)


async def test_runs_that_were_let_in_do_not_keep_pull_workers_from_others(world: World, tenant: TenantContext) -> None:
    gated, plain = await manual(tenant, max_running=1000), await manual(tenant)
    for _ in range(40):
        await trigger(tenant, gated.job_id)
    await trigger(tenant, plain.job_id)
    await fire_all(world)
    queue_id: int = await world.connection.fetchval("SELECT queue_id FROM queues WHERE name = 'mail'")
    leased: list[str] = []
    for number in range(30):  # each takes what is in lanes first with a chance of one in two
        taken = await pull_workers.lease(tenant, queue_id, f"w{number}", 1, timedelta(minutes=1))
        leased += [format_id(Prefix.JOB, each.job_id) for each in taken.attempts]
    assert plain.job_id in leased
    assert gated.job_id in leased
