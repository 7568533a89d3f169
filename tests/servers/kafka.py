"""A Kafka of one node or of several, of the jars that `make servers` copies to `.servers/kafka`."""

import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from servers.process import SERVERS, STOP_SECONDS, ServerProcess, missing

JARS = SERVERS / "kafka"
CLUSTER = "ZXZlcnRpY2stdGVzdC1vbg"
USER, PASSWORD = "evertick", "not-guest"
_JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*")
_METADATA = struct.pack(">hhihi", 3, 1, 1, -1, 0)
"""A request for the brokers, and no topics."""


class KafkaServer(ServerProcess):
    """Listens without credentials at `port`, and with SASL/PLAIN at `sasl_port`. `config` goes into its properties.

    `advertised`: the host that it tells clients to connect to. `node`: its number in its cluster.
    """

    def __init__(
        self, directory: Path, config: Mapping[str, str] | None = None, advertised: str = "127.0.0.1", node: int = 1
    ) -> None:
        super().__init__(directory, ports=3)
        if not JARS.is_dir():
            missing("kafka", "there are no jars in .servers/kafka; run `make servers`")
        if shutil.which("java") is None:
            missing("kafka", "there is no java; on Debian, apt-get install default-jre-headless")
        _, self.sasl_port, self.controller_port = self.ports
        self.node, self._advertised, self._config = node, advertised, config or {}
        self.voters: Sequence[KafkaServer] = [self]
        """The nodes of its cluster."""
        self._properties = directory / "server.properties"

    @property
    def addresses(self) -> list[str]:
        """Where clients begin."""
        return [f"127.0.0.1:{each.port}" for each in self.voters]

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        return [*_JAVA, "kafka.Kafka", str(self._properties)], {}

    def start(self) -> None:
        if not (self.directory / "data").exists():
            self._format()
        super().start()

    def answers(self) -> bool:
        """It answers, and lists itself: before that it leads no partition."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(_METADATA)) + _METADATA)
            size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL))
            told = connection.recv(size, socket.MSG_WAITALL)
            return self._advertised.encode() + self.port.to_bytes(4) in told

    def _format(self) -> None:
        voters = ",".join(f"{each.node}@127.0.0.1:{each.controller_port}" for each in self.voters)
        replicas = str(len(self.voters))
        given = {
            "process.roles": "broker,controller",
            "node.id": str(self.node),
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},SASL_PLAINTEXT://127.0.0.1:{self.sasl_port},"
            f"CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self._advertised}:{self.port},"
            f"SASL_PLAINTEXT://{self._advertised}:{self.sasl_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain."
            f'PlainLoginModule required user_{USER}="{PASSWORD}";',
            "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": "org.apache.kafka.common.security.scram."
            "ScramLoginModule required;",
            "log.dirs": str(self.directory / "data"),
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": replicas,
            "group.initial.rebalance.delay.ms": "0",
            **self._config,
        }
        lines = [f"{name}={value}" for name, value in given.items()]
        self._properties.write_text("\n".join(lines) + "\n", encoding="utf-8")
        scram = f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"
        words = [*_JAVA, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._properties)]
        words += ["--add-scram", scram]
        subprocess.run(words, cwd=self.directory, check=True, capture_output=True, timeout=STOP_SECONDS)


@contextmanager
def kafka_nodes(count: int, config: Mapping[str, str] | None = None) -> Iterator[list[KafkaServer]]:
    """The nodes of one cluster, each in a directory of its own. Each can be killed and started alone."""
    with tempfile.TemporaryDirectory(prefix="evertick-server-", ignore_cleanup_errors=True) as directory:
        nodes = []
        for number in range(1, count + 1):
            own = Path(directory) / str(number)
            own.mkdir()
            nodes.append(KafkaServer(own, config, node=number))
        for each in nodes:
            each.voters = nodes
        try:
            with ThreadPoolExecutor(count) as starting:  # at once: one alone has no quorum
                list(starting.map(KafkaServer.start, nodes))
            yield nodes
        finally:
            for each in nodes:
                each.close()
