"""SQS and S3 of moto, which `make servers` installs. It keeps all in memory: nothing is left after a stop."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from servers.process import ServerProcess, program

REGION = "eu-central-1"


class AwsServer(ServerProcess):
    """`checks_signatures_after`: so many requests need no signature; all later ones need one of a known user."""

    def __init__(self, directory: Path, checks_signatures_after: int | None = None) -> None:
        super().__init__(directory)
        self._program = program("moto_server", "sqs and s3")
        self._unchecked = checks_signatures_after
        self.url = f"http://127.0.0.1:{self.port}"

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        variables = {} if self._unchecked is None else {"INITIAL_NO_AUTH_ACTION_COUNT": str(self._unchecked)}
        return [self._program, "-H", "127.0.0.1", "-p", str(self.port)], variables
