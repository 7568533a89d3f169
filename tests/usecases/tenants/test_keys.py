"""API keys beside the API: what shows of them."""

from evertick.domain.access import KeyRole
from evertick.store.database import Pool
from evertick.usecases.tenants import keys


async def test_a_new_key_does_not_show_its_secret_where_it_is_logged(pool: Pool) -> None:
    new = await keys.create(pool, 1, KeyRole.VIEWER)
    assert new.secret not in f"{new!r} {new}"
    assert new.key.key_id in repr(new)
