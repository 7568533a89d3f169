"""Webhook secrets: made at first use, rotated without a gap, sealed in the database. A new master key seals from now
on, the older ones still open, until all is resealed and they may go. API keys: what shows of them.
"""

import asyncio
import stat
from pathlib import Path

import asyncpg
import pytest

from engine import until
from evertick.config.reading import ConfigInvalid, read_settings
from evertick.config.settings import Settings
from evertick.domain.access import KeyRole
from evertick.roles.dispatcher.settings import seal_of
from evertick.store.database import Pool
from evertick.store.tenants import broker_connections
from evertick.store.tenants.broker_connections import ConnectionKey, Content
from evertick.store.tenants.secrets import CannotUnseal, NoKey, Seal, keys_in
from evertick.targets.http.signing import Secret
from evertick.usecases.context import TenantContext
from evertick.usecases.tenants import keys, secrets

KEY = "a key of at least thirty-two characters"
SEAL = Seal(KEY)
UNNAMED = "bbb45c6fb80637562706d39d65fa2cf0cd6aeccb6598"
OTHER_SEAL = Seal("quite another key, of another installation")
OLD, NEW = "the old key, of at least 32 characters", "the new key, of at least 32 characters"
OLD_SEAL, NEW_SEAL, BOTH = Seal(OLD), Seal(NEW), Seal((NEW, OLD))


@pytest.fixture
def tenant(pool: Pool) -> TenantContext:
    return TenantContext(pool, 1)


async def test_the_first_look_makes_a_secret_that_stays(tenant: TenantContext) -> None:
    looks = await asyncio.gather(*(secrets.show(tenant, SEAL) for _ in range(8)))
    assert len({found.current for found in looks}) == 1
    assert looks[0].previous is None
    assert len(Secret.parse(looks[0].current).key) == 32


async def test_a_rotation_keeps_the_old_secret_until_it_is_dropped(tenant: TenantContext) -> None:
    first = await secrets.show(tenant, SEAL)
    rotated = await secrets.rotate(tenant, SEAL)
    assert rotated.previous == first.current != rotated.current
    assert rotated.rotated_at > first.rotated_at
    assert await secrets.show(tenant, SEAL) == rotated
    with pytest.raises(secrets.RotationUnderWay):
        await secrets.rotate(tenant, SEAL)
    dropped = await secrets.drop_previous(tenant, SEAL)
    assert (dropped.current, dropped.previous) == (rotated.current, None)
    assert (await secrets.rotate(tenant, SEAL)).previous == rotated.current


async def test_of_two_who_rotate_at_once_one_is_refused(tenant: TenantContext) -> None:
    results = await asyncio.gather(*(secrets.rotate(tenant, SEAL) for _ in range(2)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in results) == ["RotationUnderWay", "Secrets"]


async def test_each_tenant_has_its_own_and_one_copied_to_another_is_unreadable(
    tenant: TenantContext, pool: Pool, connection: asyncpg.Connection
) -> None:
    await connection.execute("INSERT INTO tenants (name) VALUES ('other')")
    other = TenantContext(pool, await connection.fetchval("SELECT max(tenant_id) FROM tenants"))
    assert (await secrets.show(tenant, SEAL)).current != (await secrets.show(other, SEAL)).current
    await connection.execute("UPDATE webhook_secrets SET current = (SELECT min(current) FROM webhook_secrets)")
    looks = await asyncio.gather(*(secrets.show(each, SEAL) for each in (tenant, other)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in looks) == ["CannotUnseal", "Secrets"]


async def test_the_database_holds_nothing_that_can_be_read_without_the_key(
    tenant: TenantContext, connection: asyncpg.Connection
) -> None:
    found = await secrets.show(tenant, SEAL)
    stored = await connection.fetchval("SELECT current FROM webhook_secrets")
    assert Secret.parse(found.current).key not in stored
    with pytest.raises(CannotUnseal, match="EVERTICK_SECRET_KEY") as refused:
        await secrets.show(tenant, OTHER_SEAL)
    assert SEAL.key_ids[0] in str(refused.value)
    assert OTHER_SEAL.key_ids[0] in str(refused.value)
    assert "another installation" not in str(refused.value)
    with pytest.raises(CannotUnseal):
        await secrets.rotate(tenant, OTHER_SEAL)


@pytest.mark.parametrize(
    "sealed",
    [b"", b"\x01", b"\x02", b"\x03" + bytes(60), b"\x02" + bytes(60), b"\x01" + bytes(60), SEAL.stamp + bytes(60)],
)
def test_what_no_seal_made_is_refused(sealed: bytes) -> None:
    with pytest.raises(CannotUnseal):
        SEAL.unseal(sealed, 1)


def test_a_secret_shows_itself_to_nobody_who_prints_it(tenant: TenantContext) -> None:
    shown = repr(secrets.Secrets("whsec_current", "whsec_previous", None))  # type: ignore[arg-type]
    assert "whsec" not in shown


def test_the_embedded_server_has_a_key_of_its_own_that_only_its_owner_can_read(tmp_path: Path) -> None:
    (key,) = keys_in(tmp_path)
    assert len(key) >= 32
    assert keys_in(tmp_path) == (key,)
    assert stat.S_IMODE((tmp_path / "secret.key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret.key"]
    sealed = seal_of(Settings(data_dir=tmp_path)).seal(b"secret", 1)
    assert Seal(key).unseal(sealed, 1) == b"secret"


def test_the_key_of_the_settings_goes_before_the_one_in_the_directory() -> None:
    sealed = seal_of(Settings(database_url="postgresql://db/evertick", secret_key=("k" * 32,))).seal(b"secret", 1)
    assert Seal("k" * 32).unseal(sealed, 1) == b"secret"


def test_a_key_on_the_first_line_of_the_file_seals_and_those_below_open(tmp_path: Path) -> None:
    (old,) = keys_in(tmp_path)
    sealed = seal_of(Settings(data_dir=tmp_path)).seal(b"secret", 1)
    (tmp_path / "secret.key").write_text(f"{'n' * 32}\n{old}\n")
    both = seal_of(Settings(data_dir=tmp_path))
    assert both.unseal(sealed, 1) == b"secret"
    assert Seal("n" * 32).unseal(both.seal(b"secret", 1), 1) == b"secret"


def test_a_file_without_a_key_seals_nothing(tmp_path: Path) -> None:
    (tmp_path / "secret.key").write_text("\n")
    with pytest.raises(NoKey, match="is empty"):
        keys_in(tmp_path)


def test_what_was_sealed_before_keys_had_ids_opens_with_the_key_that_sealed_it() -> None:
    """The form, a nonce and the text, sealed for tenant 1."""
    sealed = bytes.fromhex("01" + "00" * 12 + UNNAMED)
    assert Seal(("n" * 32, KEY)).unseal(sealed, 1) == b"secret"
    with pytest.raises(CannotUnseal, match="another key"):
        OTHER_SEAL.unseal(sealed, 1)


class Seen:
    """What a reseal says on its way."""

    def __init__(self) -> None:
        self.words: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.words.append((done, total))


@pytest.fixture
async def tenants(pool: Pool, connection: asyncpg.Connection) -> list[TenantContext]:
    """Five of them, with secrets under the old key; the first is in the middle of a rotation."""
    await connection.execute("INSERT INTO tenants (name) SELECT 'tenant ' || n FROM generate_series(1, 4) AS n")
    rows = await connection.fetch("SELECT tenant_id FROM tenants ORDER BY tenant_id")
    tenants = [TenantContext(pool, row["tenant_id"]) for row in rows]
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


async def test_the_first_key_seals_and_all_open(tenants: list[TenantContext]) -> None:
    first = await secrets.show(tenants[1], OLD_SEAL)
    rotated = await secrets.rotate(tenants[1], BOTH)
    assert rotated.previous == first.current
    with pytest.raises(CannotUnseal, match=NEW_SEAL.key_ids[0]):
        await secrets.show(tenants[1], OLD_SEAL)
    with pytest.raises(CannotUnseal, match=OLD_SEAL.key_ids[0]):
        await secrets.show(tenants[1], NEW_SEAL)


async def test_after_a_reseal_the_old_key_may_go(
    tenants: list[TenantContext], pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "RESEAL_BATCH", 2)
    before = [await secrets.show(tenant, BOTH) for tenant in tenants]
    key = ConnectionKey(tenants[0].tenant_id, "orders")
    content = Content("nats", '{"servers": ["nats.example.invalid"]}', {"token": "correct horse"})
    assert await broker_connections.add(pool, key, content, OLD_SEAL)
    seen = Seen()
    done = await secrets.reseal(pool, BOTH, seen)
    assert done == secrets.Resealed(5, 1, NEW_SEAL.key_ids[0], OLD_SEAL.key_ids)
    assert seen.words == [(2, 5), (4, 5), (5, 5)]
    assert [await secrets.show(tenant, NEW_SEAL) for tenant in tenants] == before
    (resealed,) = (await broker_connections.find(pool, [key])).values()
    assert resealed.open(NEW_SEAL) == content.secrets
    assert (await secrets.reseal(pool, BOTH, seen)).tenants == 0


async def test_without_the_old_key_nothing_is_resealed_and_the_error_names_it(
    tenants: list[TenantContext], pool: Pool
) -> None:
    before = [await secrets.show(tenant, OLD_SEAL) for tenant in tenants]
    with pytest.raises(CannotUnseal, match=OLD_SEAL.key_ids[0]) as refused:
        await secrets.reseal(pool, NEW_SEAL, Seen())
    assert "of at least" not in str(refused.value)
    assert [await secrets.show(tenant, OLD_SEAL) for tenant in tenants] == before


async def test_who_rotates_between_the_look_and_the_write_loses_nothing(
    tenants: list[TenantContext], pool: Pool, connection: asyncpg.Connection
) -> None:
    """A rotation under the old key holds the row when the reseal comes to write it."""
    moved = tenants[2]
    async with connection.transaction():
        rotated = await secrets.rotate(TenantContext(connection, moved.tenant_id), OLD_SEAL)
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


async def test_a_new_key_does_not_show_its_secret_where_it_is_logged(pool: Pool) -> None:
    new = await keys.create(pool, 1, KeyRole.VIEWER)
    assert new.api_key not in f"{new!r} {new}"
    assert new.key_id in repr(new)
