"""The turns of long polls that wait for the same work."""

import asyncio

from evertick.api.poll_turns import Poll, PollGroup, PollQueue, PollSpec


async def test_one_poll_tries_again_later_however_many_found_work_that_they_may_not_lease_yet() -> None:
    queue, group = PollQueue({}), PollGroup()
    polls = [Poll(PollSpec(1, "billing", None, "key"), queue, group) for _ in range(3)]
    disconnected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waits = [asyncio.create_task(poll.wait(disconnected, 60)) for poll in polls]
    await asyncio.sleep(0)
    for poll in polls:
        poll.try_later(0.001)
    await waits[0]
    assert [poll.has_turn for poll in polls] == [True, False, False], "the oldest"
    disconnected.set_result(None)
    await asyncio.gather(*waits)
