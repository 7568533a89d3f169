"""Where the guard lets deliveries go: by URL, and by what names resolve to."""

import asyncio
import socket
from ipaddress import ip_address, ip_network

import pytest

from evertick.domain.attempt import Failed, Succeeded
from evertick.targets.egress.guard import DestinationRefused, EgressPolicy, Guard
from evertick.targets.egress.resolution import Resolve
from evertick.targets.http.connections import Connections, Exchange, current
from targets.receivers import LONG, LOOPBACK, OK, Log, attempt, delivering, serving

OPEN = EgressPolicy(allow_http=True)


def answering(*answers: list[str]) -> Resolve:
    """A name server that gives these answers, one after the other."""
    waiting = list(answers)

    async def resolve(_: str) -> list[str]:
        return waiting.pop(0)

    return resolve


def guard(policy: EgressPolicy = OPEN, *answers: list[str]) -> Guard:
    return Guard(policy, answering(*answers))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1.", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7F.1", "017700000001",
        "0177.0.0.1", "127.0.0.0x1", "127.0.0.01", "0", "0.0.0.0", "0x", "00", "1.2.3.4.5", "127.0.0.256",
        "\uff11\uff12\uff17.0.0.1", "①②⑦.0.0.1", "127。0。0。1", "%31%32%37.0.0.1", "127.0.0.1%00.example.com",
        "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]",
        "[fe80::1%25eth0]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fd00:ec2::254]", "169.254.169.254",
        "2852039166", "0xa9fea9fe", "168.63.129.16", "10.0.0.1", "192.168.0.1", "100.64.0.1",
        "example..com", ".example.com", "-a.example.com", "a" * 64 + ".com", ".".join(["a" * 60] * 5),
    ],
)  # fmt: skip
def test_hosts_that_are_or_hide_an_address_of_ours_are_refused(host: str) -> None:
    with pytest.raises(DestinationRefused):
        guard().destination(f"http://{host}/hook")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.com/", "https"),
        ("https://user:secret@example.com/", "user name"),
        ("https://user@example.com/", "user name"),
        ("https://example.com:22/", "port 22"),
        ("https://example.com:81/", "port 81"),
        ("https://example.com:0/", "port"),
        ("https://example.com/\r\nX-Injected: 1", "visible"),
        ("https://example.com\\@127.0.0.1/", "backslash"),
        ("https://exämple.com/", "xn--"),
        ("ftp://example.com/", "http"),
        ("file:///etc/passwd", "http"),
        ("https:///path", "no host"),
    ],
)
def test_urls_are_refused_with_a_reason(url: str, reason: str) -> None:
    with pytest.raises(DestinationRefused, match=reason) as refused:
        guard(EgressPolicy()).destination(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "called", "origin"),
    [
        ("https://example.com/a%2Fb?c=%20d#e", "https://example.com/a%2Fb?c=%20d#e", "example.com:443"),
        ("https://EXAMPLE.com", "https://example.com", "example.com:443"),
        ("https://example.com.:8443/", "https://example.com.:8443/", "example.com:8443"),
        ("http://1.1.1.1.:1024/x", "http://1.1.1.1:1024/x", "1.1.1.1:1024"),
        ("https://[2606:4700:4700:0::1111]/", "https://[2606:4700:4700::1111]/", "2606:4700:4700::1111:443"),
    ],
)
def test_other_urls_pass_in_one_plain_form(url: str, called: str, origin: str) -> None:
    found = guard().destination(url)
    assert (str(found.url), found.origin) == (called, origin)


def test_ports_are_a_matter_of_configuration() -> None:
    only_9000 = guard(EgressPolicy(ports=(range(9000, 9001),)))
    assert only_9000.destination("https://example.com:9000/").origin == "example.com:9000"
    with pytest.raises(DestinationRefused, match="port 443"):
        only_9000.destination("https://example.com/")


async def test_a_name_with_public_addresses_passes_with_all_of_them() -> None:
    public = ["93.184.216.34", "2606:4700:4700::1111", "93.184.216.34"]
    assert await guard(OPEN, public).addresses("example.com", 1) == [ip_address(text) for text in public[:2]]


@pytest.mark.parametrize(
    "answer",
    [
        ["127.0.0.1"],
        ["93.184.216.34", "10.0.0.1"],
        ["10.0.0.1", "93.184.216.34"],
        ["93.184.216.34", "::1"],
        ["::ffff:93.184.216.34"],
        ["fe80::1%eth0"],
        ["169.254.169.254"],
        ["not an address"],
        ["127.1"],
        ["0x7f.0.0.1"],
    ],
)
async def test_one_bad_address_refuses_a_name_and_is_not_told(answer: list[str]) -> None:
    with pytest.raises(DestinationRefused) as refused:
        await guard(OPEN, answer).addresses("internal.test", 1)
    assert not any(text in str(refused.value) for text in answer)


async def test_a_name_without_addresses_is_an_error_that_may_pass() -> None:
    with pytest.raises(OSError, match="no addresses"):
        await guard(OPEN, []).addresses("empty.test", 1)


async def test_metadata_is_refused_where_private_targets_are_allowed() -> None:
    everything = EgressPolicy(opened=(ip_network("0.0.0.0/0"), ip_network("::/0")), allow_http=True)
    for text in ("169.254.169.254", "100.100.100.200", "fd00:ec2::254"):
        with pytest.raises(DestinationRefused):
            await guard(everything, [text]).addresses("metadata.test", 1)


async def test_a_delivery_to_a_refused_name_fails_for_good_and_touches_nothing() -> None:
    receiver = Log()
    async with serving(receiver) as port, delivering(OPEN) as delivery:
        outcome = await delivery.deliver(attempt(f"http://internal.test:{port}/"), LONG)
    assert isinstance(outcome, Failed)
    assert not outcome.retryable
    assert outcome.error.startswith("not called: ")
    assert "127.0.0.1" not in outcome.error
    assert receiver.connections == 0


async def test_a_name_that_changes_its_address_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def sock_connect(_: socket.socket, address: object) -> None:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", sock_connect, raising=False)
    async with delivering(OPEN, answering(["93.184.216.34"], ["127.0.0.1"])) as delivery:
        first = await delivery.deliver(attempt("https://rebinding.test/"), LONG)
        second = await delivery.deliver(attempt("https://rebinding.test/"), LONG)
    assert asked == [("93.184.216.34", 443)]
    assert isinstance(first, Failed)
    assert first.retryable
    assert isinstance(second, Failed)
    assert not second.retryable


async def test_a_kept_connection_stays_with_the_address_that_was_checked() -> None:
    receiver = Log()
    async with serving(receiver) as port, delivering(LOOPBACK, answering(["127.0.0.1"])) as delivery:
        for _ in range(3):
            assert isinstance(await delivery.deliver(attempt(f"http://rebinding.test:{port}/"), LONG), Succeeded)
    assert (receiver.connections, len(receiver.received)) == (1, 3)
    assert receiver.received[0].headers["host"] == f"rebinding.test:{port}"


async def test_no_socket_is_made_for_an_address_that_was_not_checked() -> None:
    connections = Connections(guard(), most_open=1, keep_alive_seconds=1)
    stream = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    current.set(Exchange(1, "example.com:80"))
    with pytest.raises(PermissionError):
        connections.checked_socket((*stream, ("127.0.0.1", 80)))
    connections.checked_socket((*stream, ("1.1.1.1", 80))).close()
    await connections.close()


async def test_redirects_are_answers_and_lead_nowhere() -> None:
    inside = Log()
    async with serving(inside) as inner_port:
        redirect = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{inner_port}/\r\nContent-Length: 0\r\n\r\n"
        async with serving(Log(redirect.encode())) as port, delivering() as delivery:
            outcome = await delivery.deliver(attempt(f"http://receiver.test:{port}/"), LONG)
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.retryable) == (302, False)
    assert inside.connections == 0


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, receiver = Log(), Log(OK)
    async with serving(proxy) as proxy_port, serving(receiver) as port:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy_port}")
        async with delivering() as delivery:
            await delivery.deliver(attempt(f"http://receiver.test:{port}/"), LONG)
    assert (proxy.connections, receiver.connections) == (0, 1)
