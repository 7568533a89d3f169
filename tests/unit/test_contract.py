"""The messages of the API: one list of a job's fields, and clients that can read what newer servers answer."""

from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from evertick.contract.derived import lenient
from evertick.contract.job import Job, JobDocument, JobFields, JobPatch, JobReplacement, JobRequest, JobSpec
from evertick.contract.jobs import PreviewRequest
from evertick.contract.reading import faults_in
from evertick.contract.runs import Run, RunDetail

ANSWER = {
    "job_id": "job_0000000000001",
    "name": "a",
    "status": "hibernating",
    "next_run_at": None,
    "spec_version": 1,
    "created_at": "2026-06-09T13:00:00Z",
    "updated_at": "2026-06-09T13:00:00Z",
    "paused_at": None,
    "pause_reason": None,
    "schedule": "@daily",
    "target": {"type": "pigeon", "loft": 7},
    "priority": "urgent",
    "max_retries": 100_000,
    "retry_delay_seconds": 10,
    "jitter_seconds": 0.5,
    "start_at": "2026-06-09T13:00:00Z",
    "colour": "blue",
}


def test_all_that_a_job_is_written_or_read_as_has_the_same_fields() -> None:
    fields = set(JobDocument.__struct_fields__) | {"name"}
    assert set(JobSpec.__struct_fields__) == set(JobFields.__annotations__) == fields
    assert set(JobRequest.__struct_fields__) == set(JobPatch.__struct_fields__) == fields
    assert set(JobReplacement.__struct_fields__) == fields - {"name"}
    assert set(Job.__struct_fields__) > fields


def test_type_checkers_know_the_words_that_are_accepted() -> None:
    kinds = get_type_hints(JobSpec)
    for name, hint in get_type_hints(JobFields).items():
        literals = [word for choice in get_args(hint) for word in get_args(choice) if isinstance(word, str)]
        if literals:
            assert literals == [str(word) for word in kinds[name]], name


def test_a_client_reads_words_fields_bounds_and_targets_that_it_does_not_know() -> None:
    job = msgspec.json.decode(msgspec.json.encode(ANSWER), type=lenient(Job))
    assert isinstance(job, Job)
    assert (job.status, job.priority, job.max_retries) == ("hibernating", "urgent", 100_000)
    assert job.target == {"type": "pigeon", "loft": 7}
    assert job.timezone == "UTC"


def test_what_is_read_leniently_is_written_in_the_same_order_and_with_the_same_numbers() -> None:
    job = msgspec.convert(ANSWER, lenient(Job))
    written = msgspec.json.decode(msgspec.json.encode(job))
    assert list(written) == list(Job.__struct_fields__)
    assert list(written)[:3] == ["job_id", "name", "status"]
    assert repr((written["retry_delay_seconds"], written["jitter_seconds"])) == "(10, 0.5)"
    assert written["start_at"] == ANSWER["start_at"]


def test_structs_within_structs_and_lists_are_read_leniently_too() -> None:
    run: dict[str, Any] = dict.fromkeys(Run.__struct_fields__)
    run |= {"run_id": "?", "job_id": "?", "scheduled_at": "2026-06-09T13:00:00Z", "status": "new", "attempt": -1}
    run |= {"reason": "new", "spec_version": 0}
    (found,) = msgspec.convert([{**run, "attempts": []}], lenient(list[RunDetail]))
    assert isinstance(found, RunDetail)
    assert (found.status, found.run.reason) == ("new", "new")


@pytest.mark.parametrize("name", ["start_at", "end_at", "after"])
def test_an_instant_that_no_schedule_reaches_is_a_fault_of_its_field(name: str) -> None:
    request = msgspec.convert({"schedule": "@daily", name: "0001-01-01T00:00:00Z"}, PreviewRequest)
    ((pointer, reason),) = faults_in(request)
    assert pointer == f"/{name}"
    assert "outside of the years" in reason
