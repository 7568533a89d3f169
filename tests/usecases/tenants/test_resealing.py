"""A new master key: it seals from now on, the older ones still open, until all is resealed and they may go."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from engine import until
from evertick.config import ConfigInvalid, read_settings
from evertick.store.database import Pool
from evertick.store.sealing import CannotUnseal, Seal
from evertick.usecases.context import Tenant
from evertick.usecases.tenants import secrets

OLD, NEW = "the old key, of at least 32 characters", "the new key, of at least 32 characters"
OLD_SEAL, NEW_SEAL, BOTH = Seal(OLD), Seal(NEW), Seal((NEW, OLD))


class Seen:
    """What a reseal says on its way."""

    def __init__(self) -> None:
        self.words: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.words.append((done, total))


@pytest.fixture
async def tenants(pool: Pool, connection: asyncpg.Connection) -> list[Tenant]:
    """Five of them, with secrets under the old key; the first is in the middle of a rotation."""
    await connection.execute("INSERT INTO tenants (name) SELECT 'tenant ' || n FROM generate_series(1, 4) AS n")
    rows = await connection.fetch("SELECT tenant_id FROM tenants ORDER BY tenant_id")
    tenants = [Tenant(pool, row["tenant_id"]) for row in rows]
    for tenant in tenants:
        await secrets.show(tenant, OLD_SEAL)
    await secrets.rotate(tenants[0], OLD_SEAL)
    return tenants


def test_several_keys_come_by_commas_or_as_a_list_and_are_never_shown(tmp_path: Path) -> None:
    by_commas = read_settings({"EVERTICK_SECRET_KEY": f" {'n' * 32} , {'o' * 32} "}, tmp_path)
    (tmp_path / "evertick.toml").write_text(f'secret_key = ["{"n" * 32}", "{"o" * 32}"]')
    as_list = read_settings({}, tmp_path)
    assert by_commas.secret_key == as_list.secret_key == ("n" * 32, "o" * 32)
    assert "nnn" not in repr(by_commas)


@pytest.mark.parametrize("keys", ["short", f"{'n' * 32},short", f"{'n' * 32},", ","])
def test_each_of_several_keys_has_to_be_long_enough(keys: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="at least 32 characters"):
        read_settings({"EVERTICK_SECRET_KEY": keys}, tmp_path)


async def test_the_first_key_seals_and_all_open(tenants: list[Tenant]) -> None:
    first = await secrets.show(tenants[1], OLD_SEAL)
    rotated = await secrets.rotate(tenants[1], BOTH)
    assert rotated.previous == first.current
    with pytest.raises(CannotUnseal, match=NEW_SEAL.key_ids[0]):
        await secrets.show(tenants[1], OLD_SEAL)
    with pytest.raises(CannotUnseal, match=OLD_SEAL.key_ids[0]):
        await secrets.show(tenants[1], NEW_SEAL)


async def test_after_a_reseal_the_old_key_may_go(
    tenants: list[Tenant], pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "RESEAL_BATCH", 2)
    before = [await secrets.show(tenant, BOTH) for tenant in tenants]
    seen = Seen()
    done = await secrets.reseal(pool, BOTH, seen)
    assert done == secrets.Resealed(5, NEW_SEAL.key_ids[0], OLD_SEAL.key_ids)
    assert seen.words == [(2, 5), (4, 5), (5, 5)]
    assert [await secrets.show(tenant, NEW_SEAL) for tenant in tenants] == before
    assert (await secrets.reseal(pool, BOTH, seen)).tenants == 0


async def test_without_the_old_key_nothing_is_resealed_and_the_error_names_it(
    tenants: list[Tenant], pool: Pool
) -> None:
    before = [await secrets.show(tenant, OLD_SEAL) for tenant in tenants]
    with pytest.raises(CannotUnseal, match=OLD_SEAL.key_ids[0]) as refused:
        await secrets.reseal(pool, NEW_SEAL, Seen())
    assert "of at least" not in str(refused.value)
    assert [await secrets.show(tenant, OLD_SEAL) for tenant in tenants] == before


async def test_who_rotates_between_the_look_and_the_write_loses_nothing(
    tenants: list[Tenant], pool: Pool, connection: asyncpg.Connection
) -> None:
    """A rotation under the old key holds the row when the reseal comes to write it."""
    moved = tenants[2]
    async with connection.transaction():
        rotated = await secrets.rotate(Tenant(connection, moved.tenant_id), OLD_SEAL)
        resealing = asyncio.create_task(secrets.reseal(pool, BOTH, Seen()))
        await _until_someone_waits(connection)
    done = await resealing
    assert done.tenants == 5
    assert await secrets.show(moved, NEW_SEAL) == rotated


async def _until_someone_waits(connection: asyncpg.Connection) -> None:
    await until(
        lambda: connection.fetchval(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        )
    )
