"""Fixtures for tests of roles."""

import asyncpg
import pytest

from roles.workshop import Workshop


@pytest.fixture
def workshop(connection: asyncpg.Connection, database_url: str) -> Workshop:
    return Workshop(connection, database_url)
