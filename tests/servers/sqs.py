"""An SQS that keeps its messages: ElasticMQ, of the jars that `make servers` copies to `.servers/sqs`."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from servers.process import SERVERS, ServerProcess, missing

JARS = SERVERS / "sqs"
REGION = "eu-central-1"


class SqsServer(ServerProcess):
    """Queues and messages survive a kill. After a start it says for a moment that its queues do not exist."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        if not JARS.is_dir():
            missing("sqs", "there are no jars in .servers/sqs; run `make servers`")
        if shutil.which("java") is None:
            missing("sqs", "there is no java; on Debian, apt-get install default-jre-headless")
        self.url = f"http://127.0.0.1:{self.port}"
        # It answers after an insert into its database, which without the option writes half a second later.
        database = f"jdbc:h2:{directory}/messages;WRITE_DELAY=0"
        given = {
            "node-address": {"protocol": "http", "host": "127.0.0.1", "port": self.port, "context-path": ""},
            "rest-sqs": {"enabled": True, "bind-hostname": "127.0.0.1", "bind-port": self.port},
            "rest-stats": {"enabled": False},
            "messages-storage": {"enabled": True, "uri": database},
            "aws": {"region": REGION},
        }
        self._config = directory / "sqs.json"
        self._config.write_text(json.dumps(given), encoding="utf-8")

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dconfig.file={self._config}"]
        return ["java", *options, "-cp", f"{JARS}/*", "org.elasticmq.server.Main"], {}
