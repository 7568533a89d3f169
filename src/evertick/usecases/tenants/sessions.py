"""Sessions of browsers: opened with an API key or a link that works once, and ended.

A session acts for its key and ends with it. Its token, and that of a link, is written as a key is; the database has
digests only. `KeyRing` finds the callers of sessions as it does those of keys.
"""

import secrets
from datetime import timedelta

from evertick.domain.access import KEYSPACE, digest_of, is_well_formed, write_key
from evertick.domain.ids import Prefix, format_id, parse_id
from evertick.store.statements import Connection
from evertick.store.tenants import audit, sessions
from evertick.store.tenants.audit import AuditRecord
from evertick.usecases.tenants.keys import Caller

LINK_TIME = timedelta(minutes=10)


async def open_session(connection: Connection, caller: Caller, time: timedelta) -> str:
    """Open a session for the holder of a key, and return its token."""
    return await _add(connection, parse_id(Prefix.API_KEY, caller.key_id), time, is_link=False)


async def make_link(connection: Connection, tenant_id: int) -> str | None:
    """A token that opens one session, for the oldest valid key of the tenant's admins. None: they have none."""
    key_id = await sessions.admin_key(connection, tenant_id)
    return None if key_id is None else await _add(connection, key_id, LINK_TIME, is_link=True)


async def use_link(connection: Connection, token: str, time: timedelta, request_id: str) -> str | None:
    """Open a session with a link's token. None: it was used, has expired, or never was. In a transaction."""
    key = await sessions.use_link(connection, digest_of(token)) if is_well_formed(token) else None
    if key is None:
        return None
    actor = format_id(Prefix.API_KEY, key.key_id)
    await audit.record(connection, AuditRecord(key.tenant_id, actor, "use_login_link", None, request_id))
    return await _add(connection, key.key_id, time, is_link=False)


async def end(connection: Connection, token: str) -> None:
    await sessions.end(connection, digest_of(token))


async def _add(connection: Connection, key_id: int, time: timedelta, *, is_link: bool) -> str:
    token = write_key(secrets.randbelow(KEYSPACE))
    await sessions.add(connection, digest_of(token), key_id, time.total_seconds(), is_link=is_link)
    return token
