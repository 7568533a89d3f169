"""What the settings mean for webhooks: the key that their secrets are sealed with, and where they may go."""

import logging
from ipaddress import ip_network

from evertick.config import Settings
from evertick.store.embedded import default_data_dir
from evertick.store.sealing import Seal, keys_in
from evertick.targets.http.guard import EgressPolicy

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


def egress_of(settings: Settings) -> EgressPolicy:
    """Where webhooks may go. Who sets nothing tries things out on one machine: that is open to them, and said."""
    if settings.egress_allow is None:
        logger.info(
            "webhooks may go to this machine (loopback) and over plain http: EVERTICK_EGRESS_ALLOW says otherwise"
        )
        return EgressPolicy(LOOPBACK, allow_http=True)
    return EgressPolicy(settings.egress_allow, allow_http=settings.egress_allow_http)
