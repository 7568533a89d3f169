"""How long a tenant leaves a host alone for which it has no slot free."""

import pytest

from evertick.domain.breaker import TenantHost
from evertick.targets.hosts import BACKOFF_SECONDS, HostBackoff
from evertick.targets.http.webhooks import host_of

HOST, SAME_HOST, OTHER_HOST = (
    TenantHost(1, host_of(url)) for url in ("https://a.test/x", "https://a.test/y", "https://b.test/x")
)
OTHER_TENANT = TenantHost(2, HOST.host)


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_holds_for_one_tenant_and_host_until_a_delivery_to_it_ends() -> None:
    backoff = HostBackoff(Time())
    backoff.begin(HOST)
    assert [backoff.holds(each) for each in (SAME_HOST, OTHER_HOST, OTHER_TENANT)] == [True, False, False]
    backoff.end(SAME_HOST)
    assert not backoff.holds(HOST)


def test_it_ends_by_itself_and_is_forgotten() -> None:
    time = Time()
    backoff = HostBackoff(time)
    backoff.begin(HOST)
    time.now += BACKOFF_SECONDS
    assert not backoff.holds(HOST)
    backoff.begin(OTHER_HOST)
    assert len(backoff) == 1


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://api.example.com/hook", "api.example.com"),
        ("https://API.Example.com:443/hook", "api.example.com"),
        ("http://api.example.com/hook", "api.example.com:80"),
        ("http://api.example.com:443/hook", "api.example.com"),
        ("https://api.example.com:8443/", "api.example.com:8443"),
        ("http://[::1]:8080/", "[::1]:8080"),
        ("https://[::1]/", "[::1]"),
    ],
)
def test_one_host_has_one_name_however_it_is_written(url: str, host: str) -> None:
    assert host_of(url) == host


def test_what_is_no_url_is_a_host_of_its_own() -> None:
    assert host_of("https://[broken") == "https://[broken"
