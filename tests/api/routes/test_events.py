"""The event stream over HTTP: pages, server-sent events, and the settings of the stream."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from api.callers import Caller, Callers, is_problem, pointers
from engine import PATIENCE_SECONDS, until
from evertick.api.event_readers import MAX_PER_TENANT
from evertick.api.server import ApiServer
from evertick.roles.janitor.sequencing import Sequencing
from evertick.store.database import Pool

STREAM = "/events/stream"
TOPIC = {"type": "kafka", "connection": "orders", "topic": "events"}
SINK = {"type": "http", "url": "https://hooks.example.invalid/events"}


@pytest.fixture
async def sequencing(pool: Pool) -> AsyncIterator[Sequencing]:
    """Gives events their positions, all the time."""
    made = Sequencing(pool)
    made.start()
    yield made
    await made.stop()


@pytest.fixture
async def streaming(admin: Caller, sequencing: Sequencing) -> Caller:
    assert (await admin.request("PUT", STREAM, json={})).status_code == 200
    return admin


class Received:
    """What a client of server-sent events gets."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.last_id = ""
        self._lines = answer.aiter_lines()

    async def event(self) -> dict[str, Any]:
        """The next event."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for line in self._lines:
                name, _, value = line.partition(": ")
                if name == "id":
                    self.last_id = value
                if name == "data":
                    found: dict[str, Any] = json.loads(value)
                    assert found["id"] == self.last_id
                    return found
        raise EOFError

    async def ended(self) -> bool:
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                async for line in self._lines:
                    assert not line.startswith("data")
            except httpx.RemoteProtocolError:
                return False
        return True


@asynccontextmanager
async def listening(caller: Caller, query: str = "", **headers: str) -> AsyncIterator[Received]:
    async with caller.stream("GET", f"/events{query}", headers={"Accept": "text/event-stream", **headers}) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"] == "text/event-stream"
        yield Received(answer)


async def collected(caller: Caller, count: int, query: str = "limit=3") -> list[dict[str, Any]]:
    """So many events, page by page; until there are so many, once more from where the last page ended."""
    found: list[dict[str, Any]] = []
    path = f"/events?{query}"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            answer = await caller.get(path)
            assert answer.status_code == 200, answer.text
            found += answer.json()
            if "next" in answer.links:
                path = answer.links["next"]["url"].partition("/api/v1")[2]
            elif found:
                path = f"/events?{query}&cursor={found[-1]['id']}" if "cursor" not in query else path
    return found


async def test_the_stream_is_switched_on_read_and_switched_off(admin: Caller) -> None:
    assert is_problem(await admin.get("/events"), 404, "not-found")
    put = await admin.request("PUT", STREAM, json={"sink": SINK, "types": ["run.finished", "job.edited"]})
    assert put.status_code == 200, put.text
    assert put.json()["sink"] == {**SINK, "headers": {}}
    assert put.json()["types"] == ["job.edited", "run.finished"]
    assert put.json()["status"]["lag_seconds"] == 0
    assert (await admin.get(STREAM)).json()["created_at"] == put.json()["created_at"]
    kept = await admin.request("PUT", STREAM, json={})
    assert (kept.json()["sink"], kept.json()["created_at"]) == (None, put.json()["created_at"])
    assert (await admin.request("DELETE", STREAM)).status_code == 204
    assert is_problem(await admin.get(STREAM), 404, "not-found")
    assert is_problem(await admin.request("DELETE", STREAM), 404, "not-found")


async def test_a_stream_that_cannot_be_is_refused(admin: Caller, callers: Callers) -> None:
    for wrong, pointer in (
        ({"sink": {**SINK, "url": "ftp://example.com"}}, "/sink/url"),
        ({"sink": {**SINK, "type": "pigeon"}}, "/sink/type"),
        ({"sink": {**TOPIC, "key": "{{payload.account}}"}}, "/sink/key"),
        ({"sink": {**TOPIC, "completion": "reported"}}, "/sink/completion"),
        ({"sink": {**TOPIC, "circuit_breaker": False}}, "/sink/circuit_breaker"),
        ({"sink": {**TOPIC, "topic": ""}}, "/sink/topic"),
        ({"sink": {**TOPIC, "topic": "a/b"}}, "/sink/topic"),
        ({"sink": {"type": "nats", "connection": "orders", "subject": "a.*"}}, "/sink/subject"),
        ({"sink": {"type": "sqs", "connection": "orders", "queue_url": "orders"}}, "/sink/queue_url"),
        ({"types": ["rumour"]}, "/types/0"),
        ({"types": []}, "/types"),
        ({"colour": "blue"}, "/colour"),
    ):
        answer = await admin.request("PUT", STREAM, json=wrong)
        assert answer.status_code == 422, wrong
        assert any(found.startswith(pointer) for found in pointers(answer)), (wrong, pointers(answer))
    refused = await admin.request("PUT", STREAM, json={"sink": {**TOPIC, "completion": "reported"}})
    assert "/sink/completion is not a known field" in refused.text
    editor = await callers.make("editor")
    assert is_problem(await editor.request("PUT", STREAM, json={}), 403, "forbidden")
    stranger = await callers.make("admin", await callers.tenant())
    assert pointers(await stranger.request("PUT", STREAM, json={"all_tenants": True})) == ["/all_tenants"]


async def test_events_are_read_page_by_page(streaming: Caller, callers: Callers) -> None:
    jobs = [await streaming.create(name=f"job {number}") for number in range(4)]
    viewer = await callers.make("viewer")
    found = await collected(viewer, 4)
    assert [event["type"] for event in found] == ["evertick.job.created"] * 4
    assert [event["data"]["job_id"] for event in found] == [job["job_id"] for job in jobs]
    assert {event["source"] for event in found} == {"/evertick/tenants/ten_0000000000001"}
    assert found[0]["partitionkey"] == found[0]["subject"] == jobs[0]["job_id"]
    assert found[0]["data"]["spec"]["schedule"] == jobs[0]["schedule"]
    rest = await collected(viewer, 2, f"cursor={found[1]['id']}")
    assert rest == found[2:]


async def test_a_poller_of_a_rare_type_goes_on_after_what_it_has_looked_at(streaming: Caller) -> None:
    job = await streaming.create(name="first")
    created = (await collected(streaming, 1, "types=job.created"))[-1]["id"]
    nothing = await streaming.get("/events?types=job.paused")
    assert (nothing.json(), "next" in nothing.links) == ([], False)
    cursor = nothing.headers["Evertick-Cursor"]
    assert int(cursor) >= int(created), "the job's creation is not looked at again"
    await streaming.post(f"/jobs/{job['job_id']}/pause", json={})
    (paused,) = await collected(streaming, 1, f"types=job.paused&cursor={cursor}")
    assert paused["data"]["job_name"] == "first"


async def test_entries_of_the_audit_log_are_for_admins(streaming: Caller, callers: Callers) -> None:
    job = await streaming.create()
    found = await collected(streaming, 3)  # the stream itself was put by a request, too
    by_type = {event["type"]: event for event in found}
    assert by_type["evertick.audit.recorded"]["data"]["action"] in {"create_job", "put_event_stream"}
    assert job["job_id"] in {event.get("subject") for event in found}
    viewer = await callers.make("viewer")
    assert {event["type"] for event in await collected(viewer, 1)} == {"evertick.job.created"}
    assert is_problem(await viewer.get("/events?types=audit.recorded"), 403, "forbidden")
    assert await collected(streaming, 1, "types=job.created") == await collected(viewer, 1)


async def test_events_are_sent_as_they_happen_to_all_who_listen(streaming: Caller, callers: Callers) -> None:
    viewer = await callers.make("viewer")
    async with listening(viewer) as first, listening(viewer) as second:
        job = await streaming.create(name="now")
        events = [await first.event(), await second.event()]
        assert events[0] == events[1]
        assert events[0]["data"]["job_id"] == job["job_id"]
        await streaming.request("DELETE", f"/jobs/{job['job_id']}")
        assert (await first.event())["type"] == "evertick.job.deleted"


async def test_a_client_that_comes_back_goes_on_where_it_was(streaming: Caller) -> None:
    query = "?types=job.created&types=job.paused"
    async with listening(streaming, query) as received:
        job = await streaming.create(name="first")
        seen = (await received.event())["id"]
    await streaming.post(f"/jobs/{job['job_id']}/pause", json={})
    async with listening(streaming, query + "&cursor=0", **{"Last-Event-ID": seen}) as received:
        assert (await received.event())["type"] == "evertick.job.paused"
        await streaming.create(name="second")
        assert (await received.event())["data"]["job_name"] == "second"


async def test_a_stream_ends_with_its_key(streaming: Caller, callers: Callers) -> None:
    viewer = await callers.make("viewer")
    (key,) = [each for each in (await streaming.get("/api-keys")).json() if each["role"] == "viewer"]
    async with listening(viewer) as received:
        await streaming.request("DELETE", f"/api-keys/{key['key_id']}")
        assert await received.ended()
    assert is_problem(await viewer.get("/events"), 401, "unauthenticated")


async def test_a_stream_ends_when_the_server_stops(streaming: Caller, server: ApiServer) -> None:
    async with listening(streaming, "?types=gap.removed") as received:
        stopping = asyncio.create_task(server.stop())
        assert await received.ended()
        await stopping


async def test_a_tenant_has_so_many_streams_at_most(streaming: Caller, callers: Callers) -> None:
    viewer = await callers.make("viewer")
    viewer.headers["Accept"] = "text/event-stream"
    requests = [viewer.build_request("GET", "/events") for _ in range(MAX_PER_TENANT + 1)]
    answers = [await viewer.send(request, stream=True) for request in requests]
    assert [answer.status_code for answer in answers] == [200] * MAX_PER_TENANT + [429]
    await answers[-1].aread()
    assert is_problem(answers[-1], 429, "over-quota")["quota"] == "event_streams"
    for answer in answers:
        await answer.aclose()
    other = await callers.make("viewer", await callers.tenant())
    assert is_problem(await other.get("/events"), 404, "not-found")

    async def has_room() -> bool:
        answer = await viewer.send(viewer.build_request("GET", "/events"), stream=True)
        await answer.aclose()
        return answer.status_code == 200

    await until(has_room)  # the server notices that the clients are gone
