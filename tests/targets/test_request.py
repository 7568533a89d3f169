"""What a delivery says about its run."""

import hmac
import json
import re
from base64 import b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_binary_event
from hypothesis import given, strategies as st

from evertick.domain.attempt import Failed, Succeeded
from evertick.targets.http.request import body_of, header_text, headers_of
from evertick.targets.http.signing import Secret, is_signed
from evertick.version import __version__
from targets.receivers import ATTEMPT, LONG, NOW, SECRET, Log, attempt, delivering, serving


def test_the_headers_are_those_of_the_contract() -> None:
    headers = headers_of(ATTEMPT, NOW)
    for name in ("webhook-signature", "Evertick-Signature"):
        assert re.fullmatch("v1,[A-Za-z0-9+/]{43}=", headers.pop(name))
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-01", headers.pop("traceparent"))
    assert headers == {
        "Content-Type": "application/json",
        "webhook-id": "report-2026-W24",
        "webhook-timestamp": "1780923605",
        "ce-specversion": "1.0",
        "ce-id": ATTEMPT.run_id,
        "ce-source": "/evertick/jobs/job_0000000000010",
        "ce-type": "evertick.run.fired",
        "ce-subject": "send-weekly-report",
        "ce-time": "2026-06-08T13:00:00Z",
        "Idempotency-Key": "report-2026-W24",
        "Evertick-Run-Id": ATTEMPT.run_id,
        "Evertick-Job-Name": "send-weekly-report",
        "Evertick-Scheduled-At": "2026-06-08T13:00:00Z",
        "Evertick-Attempt": "1",
        "Evertick-Reason": "tick",
        "Evertick-Fencing-Token": "1781532000000001",
        "User-Agent": f"Evertick/{__version__}",
        "Accept-Encoding": "identity",
    }


def test_the_signature_covers_key_time_and_body() -> None:
    header = headers_of(ATTEMPT, NOW)["webhook-signature"]
    assert is_signed([SECRET], "report-2026-W24", int(NOW.timestamp()), ATTEMPT.body, header=header)


def test_another_signature_covers_the_headers_of_the_run() -> None:
    """As the guide tells those who verify it by themselves."""
    headers = headers_of(ATTEMPT, NOW)
    lines = [
        "evertick",
        headers["webhook-signature"],
        ATTEMPT.run_id,
        "send-weekly-report",
        "2026-06-08T13:00:00Z",
        "1",
        "tick",
        "1781532000000001",
    ]
    digest = hmac.digest(SECRET.key, "\n".join(lines).encode(), "sha256")
    assert headers["Evertick-Signature"] == f"v1,{b64encode(digest).decode()}"


def test_during_a_rotation_there_are_two_signatures() -> None:
    new = Secret.generate()
    headers = headers_of(replace(ATTEMPT, secrets=(new, SECRET)), NOW)
    header = headers["webhook-signature"]
    assert len(header.split()) == len(headers["Evertick-Signature"].split()) == 2
    assert is_signed([new], "report-2026-W24", int(NOW.timestamp()), ATTEMPT.body, header=header)


def test_nothing_goes_out_unsigned() -> None:
    with pytest.raises(ValueError, match="secret"):
        replace(ATTEMPT, secrets=())


def test_cloudevents_sdk_reads_a_run_with_an_unusual_name() -> None:
    run = replace(
        ATTEMPT, job_name='Bericht für 東京 100% "fertig"', scheduled_at=datetime(2026, 6, 8, 13, 0, 0, 5, UTC)
    )
    event = from_binary_event(HTTPMessage(headers_of(run, NOW), run.body))
    assert event.get_subject() == run.job_name
    assert event.get_id() == run.run_id
    assert event.get_time() == run.scheduled_at
    assert event.get_type() == "evertick.run.fired"
    assert event.get_specversion() == "1.0"
    assert event.get_data() == {"report_type": "weekly"}


def test_times_are_told_in_utc() -> None:
    local = datetime(2026, 6, 8, 9, tzinfo=timezone(timedelta(hours=-4)))
    assert headers_of(replace(ATTEMPT, scheduled_at=local), NOW)["ce-time"] == "2026-06-08T13:00:00Z"


@given(st.text())
def test_any_text_becomes_visible_ascii(text: str) -> None:
    assert re.fullmatch(r"[!-~]*", header_text(text))


def test_a_get_has_no_body_and_signs_none() -> None:
    request = attempt("https://example.com", method="GET")
    headers = headers_of(request, NOW)
    assert body_of(request) is None
    assert "Content-Type" not in headers
    assert is_signed([SECRET], "report-2026-W24", int(NOW.timestamp()), b"", header=headers["webhook-signature"])


def test_a_job_may_name_its_type_of_content_but_not_ask_for_compression() -> None:
    headers = {"content-type": "application/vnd.x+json", "accept-encoding": "gzip", "X-Team": "growth"}
    sent = headers_of(attempt("https://example.com", headers=headers), NOW)
    assert (sent["content-type"], sent["X-Team"]) == ("application/vnd.x+json", "growth")
    assert "Content-Type" not in sent
    assert [value for name, value in sent.items() if name.lower() == "accept-encoding"] == ["identity"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "GET", "DELETE"])
async def test_what_arrives_is_what_was_made_and_nothing_else(method: str) -> None:
    receiver = Log()
    async with serving(receiver) as port, delivering() as delivery:
        url = f"http://receiver.test:{port}/a%2Fb?c=%20"
        sent = attempt(url, method=method, headers={"X-Team": "growth"}, job_name="café")
        assert isinstance(await delivery.deliver(sent, LONG), Succeeded)
    (got,) = receiver.received
    expected = {name.lower(): value for name, value in headers_of(sent, NOW).items()}
    if method != "GET":
        expected["content-length"] = str(len(sent.body))
    assert got.line == f"{method} /a%2Fb?c=%20 HTTP/1.1"
    assert got.headers == expected | {"host": f"receiver.test:{port}", "accept": "*/*"}
    assert got.body == (b"" if method == "GET" else sent.body)
    assert method == "GET" or json.loads(got.body)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "internal"}, {"webhook-id": "x"}, {"CE-Id": "x"}, {"Connection": "close"}, {"Transfer-Encoding": "x"},
        {"X-A": "b\r\nX-Injected: 1"}, {"X-A\r\nB": "c"}, {"Expect": "100-continue"}, {"Evertick-Attempt": "9"},
        {"Content-Length": "3"}, {"traceparent": "x"}, {"User-Agent": "x"},
    ],
)  # fmt: skip
async def test_headers_that_are_not_a_jobs_to_set_are_refused_here_too(headers: dict[str, str]) -> None:
    receiver = Log()
    async with serving(receiver) as port, delivering() as delivery:
        outcome = await delivery.deliver(attempt(f"http://receiver.test:{port}/", headers=headers), LONG)
    assert isinstance(outcome, Failed)
    assert not outcome.retryable
    assert receiver.connections == 0
