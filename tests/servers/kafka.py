"""A Kafka of one node, of the jars that `make servers` copies to `.servers/kafka`."""

import shutil
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from servers.process import SERVERS, STOP_SECONDS, ServerProcess, missing

JARS = SERVERS / "kafka"
CLUSTER = "ZXZlcnRpY2stdGVzdC1vbg"
USER, PASSWORD = "evertick", "not-guest"
_JAVA = ("java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*")
_METADATA = struct.pack(">hhihi", 3, 1, 1, -1, 0)
"""A request for the brokers, and no topics."""


class KafkaServer(ServerProcess):
    """Listens without credentials at `port`, and with SASL/PLAIN at `sasl_port`. `config` goes into its properties.

    `advertised`: the host that it tells clients to connect to.
    """

    def __init__(self, directory: Path, config: Mapping[str, str] | None = None, advertised: str = "127.0.0.1") -> None:
        super().__init__(directory, ports=3)
        if not JARS.is_dir():
            missing("kafka", "there are no jars in .servers/kafka; run `make servers`")
        if shutil.which("java") is None:
            missing("kafka", "there is no java; on Debian, apt-get install default-jre-headless")
        _, self.sasl_port, controller = self.ports
        self._properties = directory / "server.properties"
        given = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},SASL_PLAINTEXT://127.0.0.1:{self.sasl_port},"
            f"CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{advertised}:{self.port},"
            f"SASL_PLAINTEXT://{advertised}:{self.sasl_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain."
            f'PlainLoginModule required user_{USER}="{PASSWORD}";',
            "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": "org.apache.kafka.common.security.scram."
            "ScramLoginModule required;",
            "log.dirs": str(directory / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
            **(config or {}),
        }
        lines = [f"{name}={value}" for name, value in given.items()]
        self._properties.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        return [*_JAVA, "kafka.Kafka", str(self._properties)], {}

    def start(self) -> None:
        if not (self.directory / "data").exists():
            scram = f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"
            words = [*_JAVA, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._properties)]
            words += ["--add-scram", scram]
            subprocess.run(words, cwd=self.directory, check=True, capture_output=True, timeout=STOP_SECONDS)
        super().start()

    def answers(self) -> bool:
        """It answers, and lists itself: before that it has no leaders for topics."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(_METADATA)) + _METADATA)
            head = connection.recv(12, socket.MSG_WAITALL)
            return len(head) == 12 and struct.unpack(">iii", head)[2] > 0
