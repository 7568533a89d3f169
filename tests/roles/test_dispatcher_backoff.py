"""How long a tenant leaves a host alone for which it has no slot free."""

from evertick.targets.http.webhooks import BACKOFF_SECONDS, HostBackoff, TenantHost, host_of

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
    assert len(backoff._ends) == 1


def test_what_is_no_url_is_a_host_of_its_own() -> None:
    assert host_of("https://[broken") == "https://[broken"
