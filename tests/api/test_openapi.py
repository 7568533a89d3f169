"""The published description: what it says, and that nothing can be made of it that the server does not keep to."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from api.callers import JOB, ON_SHARED_SERVER, Caller
from evertick.api.app import operations

SCHEMATHESIS = Path(sys.executable).parent / "schemathesis"
HOOKS = Path(__file__).with_name("schemathesis_hooks.py")
# Rightly so: 429 to who comes too often, 413, 414 and 431 to what is too long. And a deleted job's history stays.
CONFIG = """
[auth.openapi.key]
bearer = "{key}"

[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "429", "5xx"]

[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "406", "413", "414", "422", "428", "429", "431", "5xx"]

[[operations]]
include-name = "GET /api/v1/jobs/{{job_id}}/runs"
checks.use_after_free.enabled = false
"""
CONTRACT = {
    "GET /jobs", "POST /jobs", "POST /jobs:batch", "GET /jobs/{job_id}", "PATCH /jobs/{job_id}",
    "DELETE /jobs/{job_id}", "GET /jobs/by-name/{name}", "PUT /jobs/by-name/{name}",
    "POST /jobs/{job_id}/pause", "POST /jobs/{job_id}/resume",
    "POST /jobs/{job_id}/trigger", "GET /jobs/{job_id}/upcoming", "POST /schedules/preview",
    "GET /jobs/{job_id}/runs", "GET /runs/{run_id}", "POST /runs/{run_id}/cancel", "POST /runs/{run_id}/replay",
    "GET /runs", "GET /dead-letters", "POST /dead-letters/{run_id}/replay", "POST /dead-letters:replay",
    "DELETE /dead-letters/{run_id}", "POST /queues/{queue}/lease", "POST /workers/{worker_id}/heartbeat",
    "POST /outcomes", "GET /cluster", "GET /stats", "GET /tenants", "POST /tenants", "GET /api-keys",
    "POST /api-keys",
}  # fmt: skip


CONNECTIONS: dict[str, Any] = {
    "kafka": {"bootstrap_servers": ["a.invalid"]},
    "rabbitmq": {"host": "a.invalid", "username": "u"},
    "redis_stream": {"host": "a.invalid"},
    "nats": {"servers": ["a.invalid"]},
    "sqs": {"region": "eu-central-1", "access_key_id": "k"},
}


async def _document(admin: Caller) -> dict[str, Any]:
    answer = await admin.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    document: dict[str, Any] = answer.json()
    return document


def test_every_route_of_the_contract_is_there() -> None:
    routes = {f"{each.method} {each.path.removeprefix('/api/v1')}" for each in operations()}
    assert routes >= CONTRACT | {"GET /livez", "GET /readyz", "GET /metrics", "GET /openapi.json"}


@ON_SHARED_SERVER
async def test_it_is_openapi_3_1_with_an_id_and_a_summary_for_each_operation(shared_admin: Caller) -> None:
    document = await _document(shared_admin)
    assert document["openapi"].startswith("3.1.")
    described = [each for path in document["paths"].values() for each in path.values()]
    assert len({each["operationId"] for each in described}) == len(described) == len(operations())
    assert all(each["summary"] for each in described)


@ON_SHARED_SERVER
async def test_every_reference_and_every_link_leads_somewhere(shared_admin: Caller) -> None:
    document = await _document(shared_admin)
    referred = set(
        re.findall(r'"\$ref":"#/components/schemas/([^"]+)"', (await shared_admin.get("/openapi.json")).text)
    )
    assert referred <= document["components"]["schemas"].keys()
    described = [each for path in document["paths"].values() for each in path.values()]
    links = [
        link for each in described for answer in each["responses"].values() for link in answer.get("links", {}).values()
    ]
    assert links
    assert {link["operationId"] for link in links} <= {each["operationId"] for each in described}


@ON_SHARED_SERVER
async def test_headers_that_requests_and_answers_may_have_are_described(shared_admin: Caller) -> None:
    paths = (await _document(shared_admin))["paths"]

    def sent(method: str, path: str) -> set[str]:
        parameters = paths[f"/api/v1{path}"][method]["parameters"]
        return {each["name"] for each in parameters if each["in"] == "header"}

    def answered(method: str, path: str, status: str) -> dict[str, bool]:
        headers = paths[f"/api/v1{path}"][method]["responses"][status].get("headers", {})
        return {name: header["required"] for name, header in headers.items()}

    posts = [path for path, methods in paths.items() if "post" in methods]
    assert len(posts) >= 16
    assert all(sent("post", path.removeprefix("/api/v1")) - {"traceparent"} == {"Idempotency-Key"} for path in posts)
    traced = {
        path.removeprefix("/api/v1") for path in posts if "traceparent" in sent("post", path.removeprefix("/api/v1"))
    }
    assert traced == {"/jobs/{job_id}/trigger", "/runs/{run_id}/replay", "/dead-letters/{run_id}/replay"}
    for method, path in (("patch", "/jobs/{job_id}"), ("delete", "/jobs/{job_id}"), ("put", "/jobs/by-name/{name}")):
        assert sent(method, path) == {"If-Match"}
        assert answered(method, path, "412") == {"ETag": False}
    assert sent("get", "/jobs") == set()
    assert answered("get", "/jobs", "200") == {"Link": False}
    assert answered("get", "/jobs/{job_id}", "200") == {"ETag": True}
    assert answered("post", "/jobs", "201") == {"Location": True, "ETag": True, "Idempotency-Replayed": False}
    assert answered("post", "/jobs", "409") == {"Retry-After": False}


@ON_SHARED_SERVER
async def test_a_list_has_pages_of_fifty_and_of_two_hundred_at_most(shared_admin: Caller) -> None:
    paths = (await _document(shared_admin))["paths"]
    limits = {
        path: each["schema"]
        for path, methods in paths.items()
        for each in methods.get("get", {}).get("parameters", ())
        if each["name"] == "limit"
    }
    assert {limit["maximum"] for limit in limits.values()} == {200}
    others = {path: limit["default"] for path, limit in limits.items() if limit["default"] != 50}
    assert others == {"/api/v1/jobs/{job_id}/runs": 20, "/api/v1/events": 100}


@ON_SHARED_SERVER
async def test_a_batch_is_described_as_json_and_as_lines(shared_admin: Caller) -> None:
    batch = (await _document(shared_admin))["paths"]["/api/v1/jobs:batch"]["post"]
    both = {"application/json", "application/x-ndjson"}
    assert batch["requestBody"]["content"].keys() == batch["responses"]["200"]["content"].keys() == both
    schemas = (await _document(shared_admin))["components"]["schemas"]
    (lines,) = schemas["BatchLines"]["examples"]
    answer = await shared_admin.post("/jobs:batch", content=lines, headers={"Content-Type": "application/x-ndjson"})
    assert [json.loads(line)["status"] for line in answer.text.splitlines()] == [201]


async def test_the_example_of_a_job_is_accepted(admin: Caller) -> None:
    document = await _document(admin)
    (example,) = document["components"]["schemas"]["JobRequest"]["examples"]
    assert (await admin.post("/jobs", json=example)).status_code == 201


@ON_SHARED_SERVER
@pytest.mark.parametrize(("method", "path"), [("get", "/jobs/{job_id}/upcoming"), ("delete", "/jobs/{job_id}")])
async def test_whatever_computes_a_schedule_may_be_told_to_come_later(
    shared_admin: Caller, method: str, path: str
) -> None:
    """Too many computations of the tenant may be waiting, though a request itself asks for little."""
    assert "429" in (await _document(shared_admin))["paths"][f"/api/v1{path}"][method]["responses"]


@ON_SHARED_SERVER
async def test_no_example_leads_anywhere(shared_admin: Caller) -> None:
    """Fuzzers send examples, and others' servers must not get them."""
    hosts = re.findall(r"https?://([^/\"\\]+)", (await shared_admin.get("/openapi.json")).text)
    assert hosts
    assert [host for host in hosts if not host.endswith(".invalid")] == []


@pytest.mark.usefixtures("scheduler")
async def test_schemathesis_finds_nothing_in_a_short_look(admin: Caller, tmp_path: Path) -> None:
    await _attack(admin, tmp_path, "--phases", "examples,fuzzing,stateful", "--max-examples", "3", "--seed", "12")


@pytest.mark.campaign
@pytest.mark.usefixtures("scheduler")
async def test_schemathesis_finds_nothing_in_all_its_phases(admin: Caller, tmp_path: Path) -> None:
    await _attack(admin, tmp_path, "--phases", "examples,coverage,fuzzing,stateful", "--continue-on-failure")


async def _attack(admin: Caller, tmp_path: Path, *options: str) -> None:
    """Let schemathesis try. It ends with 0 if it found neither failures nor errors."""
    await admin.create(**JOB)
    for kind, settings in CONNECTIONS.items():  # named as the hooks expect
        made = await admin.put(f"/connections/{kind}", json={"type": kind, "settings": settings})
        assert made.status_code == 201, made.text
    (tmp_path / "schemathesis.toml").write_text(CONFIG.format(key=admin.key), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(str(SCHEMATHESIS), "run", f"{admin.base_url}openapi.json"),
        *("--suppress-health-check", "too_slow"),  # a busy machine takes long to make examples
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=tmp_path,
        env={**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS)},
    )
    output, _ = await process.communicate()
    said = output.decode()
    assert process.returncode == 0, said[-30_000:]
    # One that lost its key would be refused everywhere, and find nothing for that reason.
    assert (await admin.get("/jobs")).status_code == 200, "the key was lost on the way"
