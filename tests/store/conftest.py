"""Each test of the store runs on the newest and on the oldest PostgreSQL that Evertick supports."""

import pytest

import postgres


@pytest.fixture(scope="session", params=[postgres.EMBEDDED, postgres.DEBIAN])
def postgres_server(request: pytest.FixtureRequest, postgres_servers: postgres.Servers) -> postgres.Server:
    programs = postgres.VERSIONS[request.param]
    if programs and not programs.exists():
        pytest.skip(f"no PostgreSQL in {programs}: `apt install postgresql-15`")
    return postgres_servers.get(request.param)
