"""What apps declare in their code: their versions, and the jobs of each."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from evertick.domain.serving import AppVersion
from evertick.store import statements
from evertick.store.statements import Connection


class Declaration(NamedTuple):
    """A job that a version declares."""

    name: str
    version_at: datetime
    digest: bytes


class DeclaredJob(NamedTuple):
    """A job that an app declares or has declared.

    `version_at`: when the newest version that declares it came first. `is_restored`: whether a start has declared it
    after the version that asks came first, and a worker is alive whose version declares it.
    """

    name: str
    version_at: datetime
    digest: bytes
    is_restored: bool


_SQL = statements.load("declared")
_VERSION = _SQL["version"].values(datetime)
_JOBS = _SQL["jobs"].rows(DeclaredJob)
_LOCK = _SQL["lock"].values(bool)


async def version(connection: Connection, tenant_id: int, app: AppVersion, names: Sequence[str]) -> datetime:
    """When a version of an app, which declares jobs of these names, came first."""
    return await _VERSION.one(connection, tenant_id=tenant_id, names=names, **app._asdict())


async def jobs(connection: Connection, tenant_id: int, app: str, version_at: datetime) -> dict[str, DeclaredJob]:
    """All jobs that versions of an app have declared, by name, as the version of `version_at` sees them."""
    found = await _JOBS.all(connection, tenant_id=tenant_id, app=app, version_at=version_at)
    return {row.name: row for row in found}


async def declare(connection: Connection, tenant_id: int, app: str, declaration: Declaration) -> None:
    await _SQL["declare"].execute(connection, tenant_id=tenant_id, app=app, **declaration._asdict())


async def forget_old(connection: Connection, tenant_id: int, app: str) -> None:
    """Forget what no start has declared for 90 days."""
    await _SQL["forget_old"].execute(connection, tenant_id=tenant_id, app=app)


async def lock(connection: Connection, tenant_id: int, app: str, name: str, version_at: datetime) -> bool:
    """Keep versions from declaring a job until the transaction ends. False: a newer one than this declares it."""
    found = await _LOCK.one_or_none(connection, tenant_id=tenant_id, app=app, name=name, version_at=version_at)
    return found is not None


async def forget(connection: Connection, tenant_id: int, app: str, name: str) -> None:
    await _SQL["forget"].execute(connection, tenant_id=tenant_id, app=app, name=name)
