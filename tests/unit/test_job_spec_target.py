"""Targets: which URLs, headers, queues and handlers a job may name."""

from typing import Any

import pytest

from evertick.contract.broker_targets import BrokerType
from evertick.contract.job_reading import read_spec
from evertick.contract.target import HTTP_QUEUE, HttpTarget, Target, WorkerTarget
from evertick.domain.errors import InvalidFields

URL = "https://example.com/hooks"


def target(**fields: Any) -> Target:
    return read_spec({"schedule": "@daily", "target": fields}).target


def faults(**fields: Any) -> dict[str, str]:
    with pytest.raises(InvalidFields) as refused:
        target(**fields)
    return dict(refused.value.faults)


def url_fault(url: object) -> str:
    return faults(type="http", url=url)["/target/url"]


def header_fault(headers: object, pointer: str) -> str:
    return faults(type="http", url=URL, headers=headers)[f"/target/headers{pointer}"]


def test_an_http_target_posts_without_headers_of_its_own_and_waits_in_the_http_queue() -> None:
    found = target(type="http", url=URL)
    assert found == HttpTarget(URL, "POST", {})
    assert found.queue_name == HTTP_QUEUE


def test_a_worker_target_waits_in_its_queue() -> None:
    assert target(type="worker", handler="send").queue_name == "default"
    assert target(type="worker", queue="billing", handler="send") == WorkerTarget(queue="billing", handler="send")
    assert target(type="worker", queue="billing", handler="send").queue_name == "billing"


def test_a_null_in_a_target_means_the_default() -> None:
    assert target(type="worker", queue=None, handler="h") == WorkerTarget(handler="h")
    assert target(type="http", url=URL, method=None, headers=None) == HttpTarget(URL)


def test_the_kind_of_target_must_be_known() -> None:
    known = ", ".join(("http", "worker", *BrokerType))
    assert faults(url=URL) == {"/target/type": f"is required: one of {known}"}
    assert faults(type="pulsar") == {"/target/type": f"must be one of {known}"}
    assert faults(type=["http"]) == {"/target/type": f"must be one of {known}"}


def test_a_target_is_refused_for_all_its_faults() -> None:
    assert faults(type="http", metod="GET", method="get", headers=3) == {
        "/target/metod": "is not a known field: did you mean 'method'?",
        "/target/method": "must be one of POST, PUT, PATCH, GET, DELETE",
        "/target/headers": "must be an object, not a number",
        "/target/url": "is required",
    }
    assert faults(type="worker", queue="http", url=URL) == {
        "/target/queue": "'http' is reserved for HTTP targets",
        "/target/url": "is not a known field: known are type, queue, handler",
        "/target/handler": "is required",
    }


@pytest.mark.parametrize(("value", "kind"), [({}, "an object"), (0, "a number"), ("false", "a string")])
def test_the_circuit_breaker_is_on_or_off(value: object, kind: str) -> None:
    assert target(type="http", url=URL, circuit_breaker=False) == HttpTarget(URL, circuit_breaker=False)
    assert faults(type="http", url=URL, circuit_breaker=value) == {
        "/target/circuit_breaker": f"must be true or false, not {kind}"
    }


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "GET", "DELETE"])
def test_a_method_is_one_of_five(method: str) -> None:
    assert target(type="http", url=URL, method=method) == HttpTarget(URL, method)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8080",
        "HTTPS://Example.COM/a?b=c#d",
        "http://10.0.0.1/",
        "http://[::1]:65535/x",
        "https://my_service.internal?x=@",
        "https://example.com/" + "x" * 2028,
    ],
)
def test_a_url_is_absolute_http(url: str) -> None:
    assert target(type="http", url=url) == HttpTarget(url)


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("", "must be absolute"),
        ("/hooks", "must be absolute"),
        ("example.com", "must be absolute"),
        ("ftp://example.com", "must be absolute"),
        ("http:example.com", "must be absolute"),
        ("javascript:alert(1)//http://x", "must be absolute"),
        ("http://", "has no host"),
        ("http:///path", "has no host"),
        ("http://:80/", "has no host"),
        ("http://user:secret@example.com", "must not contain a user name or password"),
        ("http://@example.com", "must not contain a user name or password"),
        ("http://exa mple.com", "visible ASCII"),
        ("http://example.com/\r\nHost: x", "visible ASCII"),
        ("http://example.com/\x7f", "visible ASCII"),
        ("http://example.com/\n", "visible ASCII"),
        ("http://bücher.example", "visible ASCII"),
        ("http://good.example\\@evil.example", "visible ASCII"),
        ("http://exa%6dple.com", "cannot be read"),
        ("http://[::1", "cannot be read"),
        ("http://[1::2::3]/", "cannot be read"),
        ("http://example.com:", "cannot be read"),
        ("http://example.com:http", "cannot be read"),
        ("http://example.com:0", "from 1 to 65535"),
        ("http://example.com:65536", "from 1 to 65535"),
        ("https://example.com/" + "x" * 2029, "has at most 2048 characters, not 2049"),
        (7, "must be a string, not a number"),
    ],
)
def test_a_url_is_refused(url: object, part: str) -> None:
    assert part in url_fault(url)


def test_the_fault_of_a_url_does_not_repeat_its_secrets() -> None:
    assert "hunter2" not in url_fault("https://admin:hunter2@example.com/")


def test_headers_are_kept_as_written() -> None:
    headers = {"X-Team": "growth", "authorization": "Bearer a b\tc", "X-Empty": ""}
    assert target(type="http", url=URL, headers=headers) == HttpTarget(URL, "POST", headers)


@pytest.mark.parametrize(
    "name",
    [
        "Host",
        "CONTENT-LENGTH",
        "Idempotency-Key",
        "traceparent",
        "User-Agent",
        "Webhook-Id",
        "webhook-anything",
        "CE-Type",
        "Evertick-Run-Id",
    ],
)
def test_headers_that_evertick_sets_are_refused_in_any_case(name: str) -> None:
    assert header_fault({name: "x"}, f"/{name}") == "is set by Evertick"


@pytest.mark.parametrize(
    "name",
    [
        "Close",
        "Connection",
        "HTTP2-Settings",
        "Keep-Alive",
        "Proxy-Anything",
        "Proxy-Authenticate",
        "Proxy-Authorization",
        "Proxy-Connection",
        "TE",
        "Trailer",
        "transfer-encoding",
        "Upgrade",
    ],
)
def test_headers_of_the_connection_are_refused(name: str) -> None:
    assert header_fault({name: "x"}, f"/{name}") == "belongs to the connection, not to the request"


@pytest.mark.parametrize("name", ["Expect", "EXPECT"])
def test_a_header_that_would_make_each_delivery_wait_is_refused(name: str) -> None:
    assert "wait for a reply before its body" in header_fault({name: "100-continue"}, f"/{name}")


@pytest.mark.parametrize("name", ["", "X Team", "X:", "X-Tëam", "X\n"])
def test_a_header_name_is_a_token(name: str) -> None:
    assert "is not a header name" in header_fault({name: "x"}, f"/{name}")


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\n", "\0", "\x7f", "ü", " a", "a\t"])
def test_a_header_value_cannot_break_out_of_its_line(value: str) -> None:
    assert "must be ASCII without line breaks" in header_fault({"X-A": value}, "/X-A")


def test_a_header_value_is_text() -> None:
    assert header_fault({"X-A": 1}, "/X-A") == "must be a string, not a number"


def test_a_header_is_given_once_whatever_its_case() -> None:
    assert header_fault({"X-A": "1", "x-a": "2"}, "/x-a").startswith("is given twice")


def test_headers_are_few_and_short() -> None:
    many, long = {f"X-{n}": "v" for n in range(50)}, {"X-A": "v" * 8189}
    assert target(type="http", url=URL, headers=many) == HttpTarget(URL, headers=many)
    assert target(type="http", url=URL, headers=long) == HttpTarget(URL, headers=long)
    assert header_fault({f"X-{n}": "v" for n in range(51)}, "") == "has at most 50 headers, not 51"
    assert header_fault({"X-A": "v" * 8190}, "") == "has more than 8192 bytes of names and values"


@pytest.mark.parametrize("queue", ["default", "a", "0", "a.b_c-d", "x" * 63])
def test_a_queue_has_a_plain_name(queue: str) -> None:
    assert target(type="worker", queue=queue, handler="h").queue_name == queue


@pytest.mark.parametrize("queue", ["", "-a", "A", "a b", "a/b", "ä", "a\n", "x" * 64])
def test_a_queue_name_is_refused(queue: str) -> None:
    assert faults(type="worker", queue=queue, handler="h")["/target/queue"].startswith("must be 1 to 63 characters")


@pytest.mark.parametrize("handler", ["send_invoice", "billing.tasks:send", "größe", "x" * 255])
def test_a_handler_is_a_visible_word(handler: str) -> None:
    assert target(type="worker", handler=handler) == WorkerTarget(handler=handler)


@pytest.mark.parametrize("handler", ["", "a b", "a\n", "a\u00a0b", "\0", "\ud800", "x" * 256])
def test_a_handler_is_refused(handler: str) -> None:
    assert faults(type="worker", handler=handler)["/target/handler"] == "must be 1 to 255 visible characters"


@pytest.mark.parametrize("member", ["queue", "handler"])
def test_a_queue_and_a_handler_are_texts(member: str) -> None:
    assert faults(**{"type": "worker", "handler": "h", member: 1}) == {
        f"/target/{member}": "must be a string, not a number"
    }
