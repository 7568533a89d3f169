"""What the settings mean for webhooks: the key that their secrets are sealed with, and where they may go."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network

from evertick.config.settings import Settings, is_loopback
from evertick.store.server.embedded import default_data_dir
from evertick.store.tenants.secrets import Seal, keys_in
from evertick.targets.egress.guard import EgressPolicy

logger = logging.getLogger("evertick")

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


def seal_of(settings: Settings) -> Seal:
    """The seal by the keys in the settings, else by those in this machine's data directory."""
    if settings.secret_key is not None:
        return Seal(settings.secret_key)
    data_dir = settings.data_dir or default_data_dir()
    if settings.database_url is not None:
        logger.warning(
            "webhook secrets are sealed with the key in %s: processes on other machines need the same one as"
            " EVERTICK_SECRET_KEY",
            data_dir,
        )
    return Seal(keys_in(data_dir))


@dataclass(frozen=True, slots=True)
class Egress:
    """Where webhooks may go, and a sentence that says so."""

    policy: EgressPolicy
    words: str


def egress_of(settings: Settings, tenants: int, *, runs_api: bool) -> Egress:
    """Where the webhooks of a process may go, now that there are so many tenants. `runs_api`: it runs the API, too.

    A single user on one machine may call that machine. With more users or machines its services must stay out of reach
    unless the settings open them.
    """
    if settings.egress_allow is not None:
        opened = "".join(f", {network}" for network in settings.egress_allow)
        policy = EgressPolicy(settings.egress_allow, allow_http=settings.egress_allow_http)
        return Egress(policy, f"webhooks may go to public addresses{opened}, {_schemes(policy)}, as the settings say")
    closed_by = list(_closed_by(settings, tenants, runs_api=runs_api))
    if not closed_by:
        return Egress(
            EgressPolicy(LOOPBACK, allow_http=True),
            "webhooks may go to this machine (loopback) and over plain http, as long as the API listens on loopback,"
            " the server is the embedded one and there is one tenant; EVERTICK_EGRESS_ALLOW=none closes it",
        )
    policy = EgressPolicy(allow_http=settings.egress_allow_http)
    words = (
        f"webhooks may go to public addresses alone, {_schemes(policy)}, because {' and '.join(closed_by)};"
        " EVERTICK_EGRESS_ALLOW=127.0.0.0/8 opens this machine, EVERTICK_EGRESS_ALLOW_HTTP=true plain http"
    )
    return Egress(policy, words)


def _closed_by(settings: Settings, tenants: int, *, runs_api: bool) -> Iterator[str]:
    if not runs_api:  # where it listens is unknown here
        yield "this process does not run the API"
    elif not is_loopback(settings.host):
        yield f"the API listens on {settings.host}"
    elif settings.trusted_proxies:
        yield "a proxy passes on requests of others to the API"
    if settings.database_url is not None:
        yield "the server is not the embedded one"
    if tenants != 1:
        yield "there is more than one tenant"


def _schemes(policy: EgressPolicy) -> str:
    return "over https and http" if policy.allow_http else "over https"
