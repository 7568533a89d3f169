"""What the client does when answers do not come: again if that is safe, and never twice."""

import asyncio
import pickle
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import httpx
import pytest

from evertick.client import ApiError, Client, Invalid, ServerError, TooManyRequests, Unreachable
from evertick.client.request import path_of
from evertick.contract.server import Stats
from evertick.domain.errors import InvalidInput
from sdk.proxies import DroppingProxy
from sdk.served import Served, worker_target

STATS = {
    "window_seconds": 60,
    "fired_per_second": 1,
    "finished_per_second": 1,
    "succeeded_per_second": 1,
    "lag_ms": {"p50": 1, "p95": 1, "p99": 1, "p999": 1, "max": 1},
    "ready": 0,
    "running": 0,
    "from_a_newer_server": {"unknown": True},
    "oldest_due_at": None,
    "oldest_due_seconds": 0.0,
}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that a plain client would have made."""
    made: list[float] = []
    monkeypatch.setattr(time, "sleep", made.append)
    return made


Answering: TypeAlias = Callable[..., tuple[Client, list[httpx.Request]]]


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Answering:
    """Makes a client to which a server answers these, one after the other; and what it asked."""

    def make(*answers: httpx.Response | httpx.RequestError) -> tuple[Client, list[httpx.Request]]:
        left, asked = list(answers), []

        def answer(_: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
            asked.append(request)
            came = left.pop(0)
            if isinstance(came, httpx.RequestError):
                raise came
            return came

        monkeypatch.setattr(httpx.HTTPTransport, "handle_request", answer)
        return Client("http://evertick.test", "evt_key"), asked

    return make


async def test_a_job_whose_answer_was_lost_is_created_once(house: Served) -> None:
    async with DroppingProxy(house.url) as url, Served(url, house.api_key, house.pool).client() as client:
        job = await client.jobs.create(schedule="manual", target=worker_target())
        assert [each.job_id async for each in client.jobs.list()] == [job.job_id]


async def test_a_change_without_a_key_is_not_made_twice(house: Served) -> None:
    async with house.client() as direct:
        job = await direct.jobs.create(schedule="manual", target=worker_target())
        proxy = DroppingProxy(house.url)
        async with proxy as url, Served(url, house.api_key, house.pool).client() as client:
            with pytest.raises(Unreachable) as error:
                await client.jobs.delete(job.job_id)
        assert proxy.dropped == 1
        assert not error.value.never_arrived


async def test_two_requests_with_one_key_of_the_caller_make_one_job(house: Served) -> None:
    async with house.client() as client:
        create = [
            client.jobs.create(schedule="manual", target=worker_target(), name="x", idempotency_key="k")
            for _ in range(2)
        ]
        first, second = await asyncio.gather(*create)
        assert first.job_id == second.job_id
        with pytest.raises(Invalid) as error:
            await client.jobs.create(schedule="manual", target=worker_target(), idempotency_key="k")
        assert error.value.type == "urn:evertick:problem:idempotency-key-reused"


def test_a_look_is_repeated_until_the_server_is_back(answering: Answering, pauses: list[float]) -> None:
    lost, refused = httpx.ReadError("reset"), httpx.ConnectError("refused")
    client, asked = answering(lost, refused, httpx.Response(503), httpx.Response(200, json=STATS))
    assert isinstance(client.stats(), Stats)
    assert len(asked) == 4
    assert pauses == sorted(pauses), "each pause is longer than the one before"


def test_all_tries_of_one_call_have_one_idempotency_key(answering: Answering, pauses: list[float]) -> None:
    client, asked = answering(httpx.ReadTimeout(""), httpx.Response(502), httpx.Response(200, json=[]))
    client.jobs.create_many([])
    assert len({request.headers["idempotency-key"] for request in asked}) == 1


def test_a_request_that_never_arrived_is_always_repeated(answering: Answering, pauses: list[float]) -> None:
    client, asked = answering(httpx.ConnectError("refused"), httpx.Response(204))
    client.jobs.delete("job_1")
    assert len(asked) == 2


def test_a_job_is_put_again_unless_a_version_was_asked_for(answering: Answering, pauses: list[float]) -> None:
    client, asked = answering(*[httpx.ReadError("reset")] * 6)
    with pytest.raises(Unreachable):
        client.jobs.replace("report", schedule="manual", if_match=3)
    assert len(asked) == 1
    with pytest.raises(Unreachable):
        client.jobs.replace("report", schedule="manual")
    assert len(asked) == 6


def test_who_is_turned_away_comes_back_when_told_to(answering: Answering, pauses: list[float]) -> None:
    client, _ = answering(httpx.Response(429, headers={"Retry-After": "7"}), httpx.Response(204))
    client.jobs.delete("job_1")
    assert 7 < pauses[0] < 8


def test_a_wait_that_is_too_long_is_the_callers_to_decide(answering: Answering, pauses: list[float]) -> None:
    problem = {"detail": "the quota jobs allows 5", "quota": "jobs"}
    client, _ = answering(httpx.Response(429, headers={"Retry-After": "60"}, json=problem))
    with pytest.raises(TooManyRequests, match="the quota jobs allows 5") as error:
        client.jobs.create(schedule="now")
    assert (error.value.retry_after, error.value.quota, pauses) == (60, "jobs", [])


def test_it_gives_up_at_last(answering: Answering, pauses: list[float]) -> None:
    client, asked = answering(*[httpx.ReadError("reset")] * 5)
    with pytest.raises(Unreachable, match=r"no answer from http://evertick.test: ReadError: reset"):
        client.stats()
    assert len(asked) == 5


@pytest.mark.parametrize("content", [b"<html>", b"{}", b"\xff"])
def test_an_answer_that_makes_no_sense_is_the_servers_error(answering: Answering, content: bytes) -> None:
    client, _ = answering(httpx.Response(200, content=content))
    with pytest.raises(ServerError, match="the answer cannot be read"):
        client.stats()


@pytest.mark.parametrize(("status", "kind"), [(500, ServerError), (302, ApiError), (418, ApiError)])
def test_an_error_page_of_something_in_between_is_an_error_too(
    answering: Answering, status: int, kind: type[ApiError]
) -> None:
    client, _ = answering(httpx.Response(status, text="<html>"))
    with pytest.raises(kind, match=str(status)) as error:
        client.stats()
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_the_next_page_is_asked_of_the_same_server_only(answering: Answering) -> None:
    link = {"Link": '<https://elsewhere.test/api/v1/jobs?cursor=c%3D&limit=1>; rel="next"'}
    client, asked = answering(httpx.Response(200, json=[], headers=link), httpx.Response(200, json=[]))
    assert list(client.jobs.list(page_size=1)) == []
    assert str(asked[1].url) == "http://evertick.test/api/v1/jobs?cursor=c%3D&limit=1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"url": "localhost:8700", "api_key": "evt_x"}, "must start with http://"),
        ({"url": "http://localhost"}, "set EVERTICK_API_KEY"),
        ({"api_key": "evt_x\n"}, "no key has"),
    ],
)
def test_what_a_client_cannot_use_is_said_at_once(
    arguments: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EVERTICK_API_KEY", raising=False)
    with pytest.raises(InvalidInput, match=words):
        Client(**arguments)


def test_place_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTICK_URL", "https://evertick.example.com/")
    monkeypatch.setenv("EVERTICK_API_KEY", "evt_secret")
    with Client() as client:
        assert repr(client) == "<Client https://evertick.example.com>"


def test_an_id_cannot_lead_to_another_path() -> None:
    assert path_of("jobs", "..", "a/b?c") == "/api/v1/jobs/%2E%2E/a%2Fb%3Fc"
    with pytest.raises(InvalidInput):
        path_of("jobs", "")
