"""A RabbitMQ of Debian's package `rabbitmq-server`, with a user and a port mapper of its own. It also listens with TLS,
as `localhost`.
"""

import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ports import free_ports
from secured_server import write_certificates
from servers.process import ServerProcess, missing

# The script in /usr/sbin changes to the user of the package, who cannot write into a test's directory.
SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
USER, PASSWORD = "evertick", "not-guest"


class RabbitMqServer(ServerProcess):
    """`config` are further lines of rabbitmq.conf. Durable queues and their messages survive a kill.

    `joins`: a node that has started, whose cluster it is a node of.
    """

    def __init__(
        self, directory: Path, config: Mapping[str, str] | None = None, joins: "RabbitMqServer | None" = None
    ) -> None:
        super().__init__(directory, ports=3)
        if not SCRIPT.exists():
            missing("rabbitmq", "there is no rabbitmq-server; on Debian, apt-get install rabbitmq-server")
        epmd = shutil.which("epmd")
        if epmd is None:
            missing("rabbitmq", "there is no epmd; on Debian, apt-get install erlang-base")
        self._epmd = epmd
        self.epmd_port: int = free_ports(1)[0] if joins is None else joins.epmd_port
        self._has_mapper = joins is None
        self._mapper: subprocess.Popen[bytes] | None = None
        self.node = f"evertick{self.port}@localhost"
        self.tls_port = self.ports[2]
        self.authority, certificate, key = (directory / name for name in ("authority.pem", "server.pem", "server.key"))
        write_certificates(self.authority, certificate, key)
        given = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "listeners.ssl.1": f"127.0.0.1:{self.tls_port}",
            "ssl_options.certfile": str(certificate),
            "ssl_options.keyfile": str(key),
            "default_user": USER,
            "default_pass": PASSWORD,
            "default_permissions.configure": ".*",
            "default_permissions.read": ".*",
            "default_permissions.write": ".*",
            "log.console": "true",
            "log.file": "false",
            **({} if joins is None else _formation(joins.node, self.node)),
            **(config or {}),
        }
        lines = [f"{name} = {value}" for name, value in given.items()]
        (directory / "rabbitmq.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (directory / "plugins").write_text("[].\n", encoding="utf-8")
        self.url = f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.port}/"

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        return [str(SCRIPT)], {
            "HOME": str(self.directory),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-setcookie evertick",  # the same for all nodes of a cluster
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.ports[1]),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "none"),
        }

    def start(self) -> None:
        # Erlang starts a port mapper that outlives it, unless one answers.
        if self._has_mapper and self._mapper is None:
            words = [self._epmd, "-port", str(self.epmd_port), "-address", "127.0.0.1"]
            self._mapper = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self._wait_for_mapper()
        super().start()

    def answers(self) -> bool:
        """Whether it speaks AMQP: its port is opened at the end of the boot."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"

    def close(self) -> None:
        super().close()
        mapper, self._mapper = self._mapper, None
        if mapper is not None:
            mapper.kill()
            mapper.wait()

    def _wait_for_mapper(self) -> None:
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.epmd_port), timeout=5):
                return


def _formation(*nodes: str) -> dict[str, str]:
    """Of a node that finds the others in its configuration when it first starts."""
    names = {f"cluster_formation.classic_config.nodes.{number}": node for number, node in enumerate(nodes, 1)}
    return {"cluster_formation.peer_discovery_backend": "classic_config", **names}


@contextmanager
def rabbitmq_cluster(nodes: int) -> Iterator[list[RabbitMqServer]]:
    """A cluster whose nodes have started."""
    with ExitStack() as stack:
        found: list[RabbitMqServer] = []
        for _ in range(nodes):
            found.append(stack.enter_context(RabbitMqServer.running(joins=found[0] if found else None)))
        yield found
