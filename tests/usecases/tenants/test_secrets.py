"""Webhook secrets: made at first use, rotated without a gap, sealed in the database."""

import asyncio
import stat
from pathlib import Path

import asyncpg
import pytest

from evertick.config import Settings
from evertick.roles.dispatcher.settings import seal_of
from evertick.store.database import Pool
from evertick.store.sealing import CannotUnseal, NoKey, Seal, keys_in
from evertick.targets.http.signing import Secret
from evertick.usecases.context import Tenant
from evertick.usecases.tenants import secrets

KEY = "a key of at least thirty-two characters"
SEAL = Seal(KEY)
UNNAMED = "bbb45c6fb80637562706d39d65fa2cf0cd6aeccb6598"
OTHER_SEAL = Seal("quite another key, of another installation")


@pytest.fixture
def tenant(pool: Pool) -> Tenant:
    return Tenant(pool, 1)


async def test_the_first_look_makes_a_secret_that_stays(tenant: Tenant) -> None:
    looks = await asyncio.gather(*(secrets.show(tenant, SEAL) for _ in range(8)))
    assert len({found.current for found in looks}) == 1
    assert looks[0].previous is None
    assert len(Secret.parse(looks[0].current).key) == 32


async def test_a_rotation_keeps_the_old_secret_until_it_is_dropped(tenant: Tenant) -> None:
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


async def test_of_two_who_rotate_at_once_one_is_refused(tenant: Tenant) -> None:
    results = await asyncio.gather(*(secrets.rotate(tenant, SEAL) for _ in range(2)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in results) == ["RotationUnderWay", "Secrets"]


async def test_each_tenant_has_its_own_and_one_copied_to_another_is_unreadable(
    tenant: Tenant, pool: Pool, connection: asyncpg.Connection
) -> None:
    await connection.execute("INSERT INTO tenants (name) VALUES ('other')")
    other = Tenant(pool, await connection.fetchval("SELECT max(tenant_id) FROM tenants"))
    assert (await secrets.show(tenant, SEAL)).current != (await secrets.show(other, SEAL)).current
    await connection.execute("UPDATE webhook_secrets SET current = (SELECT min(current) FROM webhook_secrets)")
    looks = await asyncio.gather(*(secrets.show(each, SEAL) for each in (tenant, other)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in looks) == ["CannotUnseal", "Secrets"]


async def test_the_database_holds_nothing_that_can_be_read_without_the_key(
    tenant: Tenant, connection: asyncpg.Connection
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


def test_a_secret_shows_itself_to_nobody_who_prints_it(tenant: Tenant) -> None:
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
