"""Requests at the edge of what HTTP allows."""

import asyncio
import logging
from urllib.parse import urlsplit

import asyncpg
import pytest

from api.callers import JOB, ON_SHARED_SERVER, Caller, is_problem
from evertick.api.app import operations
from evertick.api.operations import Operation
from evertick.api.server import ApiServer, server as api_server
from evertick.config.settings import Settings


async def test_a_path_that_is_encoded_in_another_way_names_the_same_job(admin: Caller) -> None:
    assert (await admin.put("/jobs/by%2Dname/foo", json=JOB)).json()["name"] == "foo"
    assert (await admin.put("/jobs/by-name/foo", json=JOB)).status_code == 200


@pytest.mark.parametrize(
    "path", ["//api/v1/jobs/by-name/foo", "/api/v1//jobs/by-name/foo", "/api/v1/jobs//by-name//foo/"]
)
async def test_a_slash_too_many_in_the_path_gives_the_job_no_other_name(admin: Caller, path: str) -> None:
    url = str(admin.base_url.copy_with(raw_path=path.encode()))
    assert (await admin.put(url, json=JOB)).json()["name"] == "foo"
    assert (await admin.get(url)).json()["name"] == "foo"


async def test_a_slash_at_the_end_of_a_name_is_kept_where_it_is_encoded(admin: Caller) -> None:
    assert (await admin.put("/jobs/by-name/%2Ffoo%2F", json=JOB)).json()["name"] == "/foo/"


@ON_SHARED_SERVER
@pytest.mark.parametrize("operation", [each for each in operations() if each.parameters], ids=lambda each: each.name)
async def test_a_nul_in_the_path_names_nothing_and_is_no_error_of_the_server(
    shared_admin: Caller, operation: Operation
) -> None:
    path = operation.path.removeprefix("/api/v1")
    for parameter in operation.parameters:
        path = path.replace(f"{{{parameter}}}", "a%00b")
    is_problem(await shared_admin.request(operation.method, path, json={}), 404, "not-found")


async def test_a_name_in_the_path_that_is_not_utf_8_is_refused_and_not_mended(admin: Caller) -> None:
    is_problem(await admin.put("/jobs/by-name/%ff", json=JOB), 400, "malformed")
    assert (await admin.get("/jobs")).json() == []


async def test_any_of_several_versions_may_match(admin: Caller) -> None:
    job = await admin.create()
    path, headers = f"/jobs/{job['job_id']}", {"If-Match": '"1", "5"'}
    assert (await admin.patch(path, json={"max_retries": 1}, headers=headers)).status_code == 200
    is_problem(await admin.patch(path, json={"max_retries": 2}, headers=headers), 412, "version-conflict")


async def test_a_job_that_must_exist_is_not_created(admin: Caller) -> None:
    path, headers = "/jobs/by-name/nightly", {"If-Match": "*"}
    is_problem(await admin.put(path, json=JOB, headers=headers), 412, "version-conflict")
    await admin.put(path, json=JOB)
    assert (await admin.put(path, json=JOB, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("media_type", "status"),
    [
        ("application/json; charset=utf-8; profile=x", 422),
        ('application/json; profile=x; charset="UTF-8"', 422),
        ("application/json; profile=x; charset=latin-1", 415),
    ],
)
async def test_further_parameters_of_a_media_type_do_not_matter(admin: Caller, media_type: str, status: int) -> None:
    answer = await admin.post("/jobs", content=b"{}", headers={"Content-Type": media_type})
    assert answer.status_code == status


async def test_the_request_id_of_an_unexpected_error_finds_it_in_the_log(
    admin: Caller, connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await connection.execute("ALTER TABLE jobs RENAME TO jobs_renamed")
    with caplog.at_level(logging.ERROR, "evertick.api"):
        problem = is_problem(await admin.get("/jobs"), 500, "internal")
    assert problem["request_id"] in caplog.text
    assert 'relation "jobs" does not exist' in caplog.text


async def test_an_upload_that_a_stop_cuts_off_may_be_tried_again(
    database_url: str, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "GRACE_SECONDS", 1)
    server = ApiServer(database_url, Settings(port=0))
    await server.start()
    place = urlsplit(server.address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {admin.key}\r\nContent-Length: 100\r\n\r\n"
    writer.write(head.encode() + b"{")
    async with Caller(server.address, admin.key) as caller:
        await caller.get("/jobs")  # the other is under way by now
    await server.stop()
    assert (await reader.readline()).startswith(b"HTTP/1.1 503")
    writer.close()
