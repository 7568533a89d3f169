"""Decides where a delivery may go: its URL by form, scheme, port and host, then every address that the host has.

A name is resolved once for each connection, all its addresses are checked, and the connection goes to one of these:
a second answer of the name server is never asked for. What cannot be judged is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address

from yarl import URL

from evertick.domain.errors import EvertickError
from evertick.domain.fairness import Tenants
from evertick.domain.job.http_target import fault_in_url
from evertick.targets.http.addresses import Address, Network, is_callable
from evertick.targets.http.host import read_host
from evertick.targets.http.lookups import Lookups
from evertick.targets.http.resolution import Resolve
from evertick.targets.http.slots import one_tenant

DEFAULT_PORTS = (range(80, 81), range(443, 444), range(1024, 65_536))
REMEMBERED_URLS = 4096
NOT_ALLOWED = "not one that is allowed here: the dispatcher's EVERTICK_EGRESS_ALLOW lists those"


class Refused(EvertickError):  # noqa: N818 - says what happened
    """The guard does not let a delivery go there. The message names no address: who reads it may not know it."""


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """What the configuration lets targets be. `opened` are networks beyond the public ones."""

    opened: tuple[Network, ...] = ()
    allow_http: bool = False
    ports: tuple[range, ...] = DEFAULT_PORTS

    def permits(self, address: Address) -> bool:
        return is_callable(address, self.opened)


@dataclass(frozen=True, slots=True)
class Destination:
    """A URL that may be called once its host's addresses are checked; `origin` tells hosts and ports apart."""

    url: URL
    origin: str


class Guard:
    """Judges URLs and names by one policy, which may be replaced at any time."""

    def __init__(self, policy: EgressPolicy, resolve: Resolve, tenants: Callable[[], Tenants] = one_tenant) -> None:
        self._policy = policy
        self._look_up = Lookups(resolve, tenants)
        # A refusal is not remembered: it costs its caller a whole attempt.
        self.destination = lru_cache(maxsize=REMEMBERED_URLS)(self._destination)

    @property
    def policy(self) -> EgressPolicy:
        return self._policy

    @policy.setter
    def policy(self, policy: EgressPolicy) -> None:
        self._policy = policy
        self.destination.cache_clear()

    def _destination(self, url: str) -> Destination:
        """Judge a URL; an address in it is checked here, because no resolver will see it."""
        reason = fault_in_url(url)
        if reason is not None:
            raise Refused(f"the URL {reason}")
        parsed = URL(url, encoded=True)
        if parsed.scheme != "https" and not self.policy.allow_http:
            raise Refused(
                "the URL must begin with https://: plain http is not allowed here, unless the dispatcher's"
                " EVERTICK_EGRESS_ALLOW_HTTP is true"
            )
        assert parsed.port is not None
        if not any(parsed.port in ports for ports in self.policy.ports):
            raise Refused(f"port {parsed.port} is not allowed here")
        host = self._host(parsed.raw_host or "")
        return Destination(parsed.with_host(host), f"{host.removesuffix('.')}:{parsed.port}")

    def _host(self, text: str) -> str:
        host = read_host(text)
        if host is None:
            raise Refused("the URL's host is neither a name nor a plainly written address")
        if isinstance(host, str):
            return host + "." * text.endswith(".")  # to resolvers it says that the name is complete
        if not self.policy.permits(host):
            raise Refused(f"the URL's address is not public, and {NOT_ALLOWED}")
        return str(host)

    async def addresses(self, name: str, tenant_id: int) -> list[Address]:
        """Resolve a name for a tenant, once. One bad address among good ones is reason enough to refuse them all."""
        try:
            found = [ip_address(text) for text in dict.fromkeys(await self._look_up(name, tenant_id))]
        except ValueError as error:
            raise Refused("the URL's host has an address that cannot be read") from error
        if not found:
            raise OSError("no addresses")
        if not all(map(self.policy.permits, found)):
            raise Refused(f"the URL's host has an address that is not public, and {NOT_ALLOWED}")
        return found
