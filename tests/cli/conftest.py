import pytest

from cli.commands import Cli


@pytest.fixture
def cli(database_url: str) -> Cli:
    return Cli(database_url)
