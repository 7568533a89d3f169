import json

import pytest

from api.callers import JOB, Caller, is_problem, pointers

LINES = {"Content-Type": "application/x-ndjson"}


async def test_good_jobs_are_kept_when_others_fail_and_each_has_a_verdict(admin: Caller) -> None:
    await admin.create(name="taken")
    batch = [{**JOB, "name": "a"}, {"schedule": "nonsense"}, {**JOB, "name": "taken"}, {**JOB, "name": "a"}, 5]
    answer = await admin.post("/jobs:batch", json=batch)
    assert answer.status_code == 200
    verdicts = answer.json()
    assert [verdict["line"] for verdict in verdicts] == [1, 2, 3, 4, 5]
    assert [verdict["status"] for verdict in verdicts] == [201, 422, 422, 422, 422]
    assert {error["pointer"] for error in verdicts[1]["errors"]} == {"/schedule", "/target"}
    assert [verdict["errors"][0]["pointer"] for verdict in verdicts[2:]] == ["/name", "/name", ""]
    assert (await admin.get(f"/jobs/{verdicts[0]['job_id']}")).json()["name"] == "a"


async def test_one_job_on_each_line_gets_one_verdict_on_each(admin: Caller) -> None:
    lines = [json.dumps({**JOB, "name": "a"}), "", "{not json", '{"x": "\\ud800"}', json.dumps({**JOB, "name": "b"})]
    answer = await admin.post("/jobs:batch", content="\r\n".join(lines), headers=LINES)
    assert answer.headers["content-type"] == "application/x-ndjson"
    verdicts = [json.loads(line) for line in answer.text.splitlines()]
    assert [(verdict["line"], verdict["status"]) for verdict in verdicts] == [(1, 201), (3, 400), (4, 400), (5, 201)]
    assert [job["name"] for job in (await admin.get("/jobs")).json()] == ["a", "b"]


@pytest.mark.parametrize("name", ["application/ndjson", "application/jsonl"])
async def test_lines_are_read_by_whichever_name_a_program_sends_them(admin: Caller, name: str) -> None:
    lines = f"{json.dumps(JOB)}\n{json.dumps(JOB)}\n"
    answer = await admin.post("/jobs:batch", content=lines, headers={"Content-Type": name})
    assert [json.loads(line)["status"] for line in answer.text.splitlines()] == [201, 201]


async def test_a_name_that_is_taken_in_the_batch_says_by_which_line(admin: Caller) -> None:
    lines = ["", "{not json", json.dumps({**JOB, "name": "a"}), "", json.dumps({**JOB, "name": "a"})]
    answer = await admin.post("/jobs:batch", content="\n".join(lines), headers=LINES)
    *_, last = [json.loads(line) for line in answer.text.splitlines()]
    assert (last["line"], last["errors"][0]["detail"]) == (5, "is taken by line 3 of this batch")


async def test_ten_thousand_jobs_fit_and_no_more(admin: Caller) -> None:
    jobs = [{**JOB, "name": f"job {number}", "payload": {"n": number}} for number in range(10_001)]
    assert pointers(await admin.post("/jobs:batch", json=jobs)) == [""]
    answer = await admin.post("/jobs:batch", json=jobs[:10_000])
    assert {verdict["status"] for verdict in answer.json()} == {201}


async def test_an_empty_batch_has_no_verdicts(admin: Caller) -> None:
    assert (await admin.post("/jobs:batch", json=[])).json() == []
    assert (await admin.post("/jobs:batch", content="\n\n", headers=LINES)).text == ""


async def test_a_batch_that_is_no_array_is_refused(admin: Caller) -> None:
    assert pointers(await admin.post("/jobs:batch", json=JOB)) == [""]
    is_problem(
        await admin.post("/jobs:batch", content="[", headers={"Content-Type": "application/json"}), 400, "malformed"
    )
    is_problem(
        await admin.post("/jobs:batch", content="[]", headers={"Content-Type": "text/csv"}),
        415,
        "unsupported-media-type",
    )


async def test_a_repeated_batch_creates_nothing_twice(admin: Caller) -> None:
    headers = {"Idempotency-Key": "import-1"}
    first = await admin.post("/jobs:batch", json=[JOB, JOB], headers=headers)
    again = await admin.post("/jobs:batch", json=[JOB, JOB], headers=headers)
    assert again.json() == first.json()
    assert len((await admin.get("/jobs")).json()) == 2
