import asyncpg
import pytest

from engine import Holder
from evertick.store.database import Pool
from evertick.usecases.context import TenantContext
from usecases.world import World, at


@pytest.fixture
async def world(connection: asyncpg.Connection, pool: Pool) -> World:
    world = World(connection, pool, Holder(connection))
    await world.set_clock(at(0, 30))
    await world.holder.take(*range(256))
    return world


@pytest.fixture
def tenant(world: World) -> TenantContext:
    return world.tenant()
