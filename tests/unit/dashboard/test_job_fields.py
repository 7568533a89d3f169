"""The form of a job: all fields of the contract are in it, and what it shows is what it reads."""

from datetime import UTC, datetime
from typing import Any

import pytest

from evertick.contract.job import EXAMPLE_JOB, JobDocument
from evertick.contract.job_reading import read_spec
from evertick.contract.target import TARGETS
from evertick.dashboard.jobs import fields
from evertick.dashboard.jobs.code import code_of
from evertick.dashboard.pages.job_form import cost_text
from evertick.domain.errors import Fault


def test_the_form_has_every_field_of_a_job_and_of_each_target() -> None:
    grouped = [field.name for _, group in fields.groups() for field in group]
    assert sorted([*fields.basic_fields(), "target", *grouped]) == sorted(JobDocument.__struct_fields__)
    for kind in TARGETS:
        shown = {field.path[-1] for field in fields.targets()[str(kind.__struct_config__.tag)]}
        assert shown == set(kind.__struct_fields__)


@pytest.mark.parametrize(
    "job",
    [
        EXAMPLE_JOB,
        {
            "name": "all",
            "schedule": "every 5m",
            "target": {"type": "kafka", "connection": "main", "topic": "runs", "circuit_breaker": False},
            "payload": {"a": [1, None, "ü"]},
            "labels": {"team": "billing", "tier": "gold"},
            "start_at": "2026-06-09T13:00:00Z",
            "must_succeed_within": "26h",
            "alert_if_running_seconds": 900,
            "retry_delay_seconds": 0.5,
            "priority": "high",
        },
    ],
)
def test_what_a_form_shows_of_a_job_is_read_as_the_same_job(job: dict[str, Any]) -> None:
    read, faults = fields.job_of(fields.texts_of(job))
    assert faults == []
    assert read_spec(read) == read_spec(job)


def test_instants_are_shown_with_their_zone() -> None:
    at = datetime(2026, 6, 9, 13, tzinfo=UTC)
    job = {"schedule": "manual", "target": {"type": "worker", "handler": "h"}, "start_at": at}
    assert fields.texts_of(job)["start_at"] == "2026-06-09T13:00:00Z"


def test_texts_that_cannot_be_read_are_faults_of_their_fields() -> None:
    texts = {"schedule": "manual", "payload": '{"a": ', "labels": "team billing", "target.type": "worker"}
    _, faults = fields.job_of(texts)
    assert [fields.name_of(fault.pointer, texts) for fault in faults] == ["payload", "labels"]
    assert faults[1] == Fault("/labels", "needs a name, a colon and a value in line 1")


def test_a_pointer_of_the_contract_names_the_field_of_the_chosen_target() -> None:
    texts = {"target.type": "sqs"}
    assert fields.name_of("/target/queue_url", texts) == "target.sqs.queue_url"
    assert fields.name_of("/target/headers/X-A", texts) == "target.sqs.headers"
    assert fields.name_of("/target", texts) == "target.type"
    assert fields.name_of("", texts) == ""


def test_code_quotes_what_a_shell_and_python_would_read_otherwise() -> None:
    curl, python, _ = code_of({"name": "it's $HOME", "schedule": "manual"})
    assert """'"'"'s $HOME""" in curl.text
    assert '''name="it's $HOME"''' in python.text
    assert "by-name/a%2Fb%20c" in code_of({}, replaces="a/b c")[0].text


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        (8640 * 365, "8,640 runs a day"),
        (365, "1 run a day"),
        (52, "1 run a week"),
        (104, "2 runs a week"),
        (12, "1 run a month"),
        (1, "1 run in the next year"),
        (0, ""),
        (None, ""),
    ],
)
def test_the_cost_of_a_schedule_is_a_small_number_of_some_unit(runs: int | None, text: str) -> None:
    assert cost_text(runs) == text
