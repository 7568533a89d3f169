"""Commands on a database whose URL names several hosts."""

import socket

from click.testing import CliRunner

from evertick.cli.main import app
from faults.proxy import Proxy


def test_a_command_goes_to_the_host_that_answers(database_url: str) -> None:
    proxy = Proxy(database_url)
    try:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            hosts = f"127.0.0.1:{mute.getsockname()[1]},127.0.0.1:{proxy.port}"
            url = proxy.url.replace(f"127.0.0.1:{proxy.port}", hosts)
            result = CliRunner().invoke(app, ["migrate", "--database-url", url])
        assert result.exit_code == 0, result.output
    finally:
        proxy.stop()


def test_without_any_host_a_command_names_each_of_them(database_url: str) -> None:
    proxies = [Proxy(database_url), Proxy(database_url)]
    for proxy in proxies:
        proxy.stop()
    hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
    result = CliRunner().invoke(app, ["migrate", "--database-url", f"postgresql://jane:s3cret@{hosts}/jobs"])
    assert result.exit_code == 3
    assert all(f"127.0.0.1:{proxy.port}: " in result.stderr for proxy in proxies)
    assert "s3cret" not in result.output
