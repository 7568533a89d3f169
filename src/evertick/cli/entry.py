"""The entry point of the `evertick` command."""

import sys

from evertick.runtime.extras import MissingExtra, server_extra


def main() -> None:
    try:
        with server_extra("this command"):
            from evertick.cli.main import main as run  # noqa: PLC0415 - not before it is known that it can be
    except MissingExtra as missing:
        sys.exit(f"Error: {missing}")
    run()
