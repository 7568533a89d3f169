import json
import re
from collections.abc import AsyncIterator

import asyncpg
import pytest

from api.callers import JOB, ON_SHARED_SERVER, Caller, Callers, is_problem, pointers

pytestmark = ON_SHARED_SERVER


async def test_what_does_not_exist_is_not_found(shared_admin: Caller) -> None:
    is_problem(await shared_admin.get("/nothing"), 404, "not-found")
    is_problem(await shared_admin.get("/jobs/job_0000000000000"), 404, "not-found")
    is_problem(await shared_admin.get("/jobs/no-id-at-all"), 404, "not-found")


async def test_another_method_is_told_which_are_allowed(shared_admin: Caller) -> None:
    answer = await shared_admin.delete("/jobs")
    is_problem(answer, 405, "method-not-allowed")
    assert {"GET", "POST"} <= set(answer.headers["allow"].split(", "))
    options = await shared_admin.options("/jobs")
    assert {"GET", "POST"} <= set(options.headers["allow"].split(", "))


async def test_head_answers_as_get_without_a_body(shared_admin: Caller, shared_callers: Callers) -> None:
    job = await shared_admin.create()
    head = await shared_admin.head(f"/jobs/{job['job_id']}")
    assert (head.status_code, head.headers["etag"], head.content) == (200, '"1"', b"")
    assert (await shared_admin.head("/jobs/job_0000000000000")).status_code == 404
    assert (await shared_callers.of(None).head("/jobs")).status_code == 401
    assert (await shared_admin.head("/jobs:batch")).status_code == 405


@pytest.mark.parametrize("key", [None, "evt_", "evt_" + "0" * 28, "secret", "evt_é"])
async def test_without_a_valid_key_nobody_comes_in(shared_callers: Callers, key: str | None) -> None:
    caller = shared_callers.of(None)
    headers = {} if key is None else {b"Authorization": f"Bearer {key}".encode()}
    answer = await caller.get("/jobs", headers=headers)
    is_problem(answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_key_in_another_scheme_is_none(shared_admin: Caller, shared_callers: Callers) -> None:
    caller = shared_callers.of(None)
    is_problem(
        await caller.get("/jobs", headers={"Authorization": f"Basic {shared_admin.key}"}), 401, "unauthenticated"
    )


@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b'"\\ud800"', b"[" * 100_000, b"NaN", b"{} {}"])
async def test_a_body_that_is_not_json_is_malformed(shared_admin: Caller, body: bytes) -> None:
    answer = await shared_admin.post("/jobs", content=body, headers={"Content-Type": "application/json"})
    is_problem(answer, 400, "malformed")


@pytest.mark.parametrize("body", ["[]", "5", '"job"', "null"])
async def test_a_job_that_is_no_object_is_refused(shared_admin: Caller, body: str) -> None:
    answer = await shared_admin.post("/jobs", content=body, headers={"Content-Type": "application/json"})
    assert pointers(answer) == [""]


async def test_a_number_that_cannot_be_read_points_to_no_field_that_nobody_sent(shared_admin: Caller) -> None:
    body = json.dumps({**JOB, "payload": "number"}).replace('"number"', "1e999")
    answer = await shared_admin.post("/jobs", content=body, headers={"Content-Type": "application/json"})
    assert pointers(answer) == [""]


async def test_a_body_over_a_megabyte_is_too_large_however_it_is_sent(shared_admin: Caller) -> None:
    large = json.dumps({**JOB, "payload": "x" * 1_048_576}).encode()

    async def in_parts() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 65_536):
            yield large[start : start + 65_536]

    headers = {"Content-Type": "application/json"}
    is_problem(await shared_admin.post("/jobs", content=large, headers=headers), 413, "too-large")
    is_problem(await shared_admin.post("/jobs", content=in_parts(), headers=headers), 413, "too-large")


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"]
)
async def test_another_media_type_is_unsupported(shared_admin: Caller, media_type: str) -> None:
    answer = await shared_admin.post("/jobs", content=json.dumps(JOB), headers={"Content-Type": media_type})
    is_problem(answer, 415, "unsupported-media-type")


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("limit=0", "/limit"),
        ("limit=201", "/limit"),
        ("limit=many", "/limit"),
        ("limit=1&limit=2", "/limit"),
        ("cursor=nonsense", "/cursor"),
        ("status=null", "/status"),
        ("status=sleepy", "/status"),
        ("label=no-colon", "/label"),
        ("name_prefix=%00", "/name_prefix"),
        ("colour=red", "/colour"),
    ],
)
async def test_a_query_parameter_that_cannot_be_used_is_named(shared_admin: Caller, query: str, pointer: str) -> None:
    assert pointers(await shared_admin.get(f"/jobs?{query}")) == [pointer]


@pytest.mark.parametrize("path", ["/jobs/job_0000000000000", "/cluster", "/stats"])
async def test_where_no_query_parameter_is_known_none_is_taken(shared_admin: Caller, path: str) -> None:
    assert pointers(await shared_admin.get(f"{path}?verbose=1")) == ["/verbose"]


async def test_a_query_that_is_not_utf_8_is_malformed(shared_admin: Caller) -> None:
    is_problem(await shared_admin.get("/jobs?name_prefix=%ff"), 400, "malformed")


async def test_where_a_fault_lies_deep_the_pointer_leads_to_it(shared_admin: Caller) -> None:
    outcomes = [{"token": "1.2", "result": "success"}, {"token": "1.3", "result": "splendid"}]
    answer = await shared_admin.post("/outcomes", json={"worker_id": "w", "outcomes": outcomes})
    assert pointers(answer) == ["/outcomes/1/result"]
    answer = await shared_admin.post("/jobs/job_0000000000000/pause", json={"because": "I say so"})
    assert pointers(answer) == ["/because"]
    answer = await shared_admin.post("/queues/billing/lease", json={})
    assert pointers(answer) == ["/worker_id"]


async def test_whole_numbers_may_be_written_with_a_fraction_of_nothing(shared_admin: Caller) -> None:
    answer = await shared_admin.post("/queues/billing/lease", json={"worker_id": "w", "max": 5.0, "wait_seconds": 0})
    assert answer.status_code == 200


@pytest.mark.asyncio(loop_scope="function")
async def test_a_surprise_is_told_to_nobody_outside(admin: Caller, connection: asyncpg.Connection) -> None:
    await connection.execute("ALTER TABLE audit_log RENAME TO nowhere")
    answer = await admin.post("/jobs", json=JOB)
    problem = is_problem(answer, 500, "internal")
    assert "audit_log" not in answer.text
    assert not re.search(r"asyncpg|Traceback|evertick/", answer.text)
    assert problem["request_id"]
    await connection.execute("ALTER TABLE nowhere RENAME TO audit_log")
    assert (await admin.get("/jobs")).json() == [], "what failed was undone"


async def test_a_harmless_request_id_is_kept_and_another_one_replaced(shared_admin: Caller) -> None:
    assert (await shared_admin.get("/jobs", headers={"X-Request-Id": "req-7.a_b:c"})).headers[
        "x-request-id"
    ] == "req-7.a_b:c"
    for harmful in ("a b", "x" * 65, "<script>", "é"):
        answer = await shared_admin.get("/jobs", headers={b"X-Request-Id": harmful.encode()})
        assert re.fullmatch(r"[0-9a-f]{16}", answer.headers["x-request-id"])


async def test_every_answer_has_headers_that_browsers_heed_and_tells_no_version(shared_admin: Caller) -> None:
    for answer in (
        await shared_admin.get("/jobs"),
        await shared_admin.get("/nothing"),
        await shared_admin.delete("/jobs"),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "server" not in answer.headers
