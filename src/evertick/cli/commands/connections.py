"""`evertick connections`: connections to message brokers, which targets use by name."""

import sys
from pathlib import Path
from typing import Annotated, Any

import click
from msgspec.structs import asdict

from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.options import Limit, parse_fields, parse_pairs
from evertick.cli.output import print_document, print_listing, print_result
from evertick.cli.signatures import Argument, CommandGroup, Option
from evertick.contract.broker_targets import BrokerType
from evertick.contract.connections import SECRETS, BrokerConnection

app = CommandGroup(help="Add, test and remove connections to message brokers.")

Name = Annotated[str, Argument(metavar="NAME", help="The name that targets use.")]
STDIN = "-"
_LONG = "tls_ca"


@app.add("list")
@connection_options
def list_connections(connection: ConnectionOptions, *, limit: Limit = 50) -> None:
    """List the connections, without their secrets.

    Example

      evertick connections list
    """
    print_listing(
        call(connection, lambda backend: backend.list_connections(limit)),
        ("name", "type", "settings", "secrets", "changed (UTC)"),
        _row,
        empty="No connections.",
        as_json=connection.as_json,
    )


@app.add()
@connection_options
def show(connection: ConnectionOptions, name: Name) -> None:
    """Show a connection, without its secrets.

    Example

      evertick connections show orders
    """
    found = call(connection, lambda backend: backend.get_connection(name))
    print_document(asdict(found), as_json=connection.as_json)


@app.add()
@connection_options
def add(
    connection: ConnectionOptions,
    name: Name,
    kind: Annotated[BrokerType, Argument(metavar="TYPE", help=f"One of {', '.join(BrokerType)}.")],
    *,
    settings: Annotated[
        list[str] | None, Option("--set", metavar="NAME=VALUE", help="A setting. Can be repeated.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="Ask for this secret in the terminal. Can be repeated."),
    ] = None,
    secret_file: Annotated[
        list[str] | None,
        Option(metavar="NAME=FILE", help="Read this secret from a file, or from stdin (-). Can be repeated."),
    ] = None,
    replace: Annotated[
        bool, Option("--replace", help="Replace a connection of this name; secrets not given stay.")
    ] = False,
) -> None:
    r"""Add a connection. Secrets come from files or the terminal, not from the command line, which others can see.

    Examples

      evertick connections add events redis_stream --set host=redis.example.com --secret password

      evertick connections add orders kafka --set 'bootstrap_servers=["b1.example.com:9093"]' \
        --set username=evertick --secret-file password=/run/secrets/kafka
    """
    fields: dict[str, Any] = {
        "type": str(kind),
        "settings": parse_fields("--set", settings or ()),
        "secrets": _secrets(kind, secret or (), parse_pairs("--secret-file", secret_file or (), "=")),
    }
    added = call(connection, lambda backend: backend.add_connection(name, fields, replaces=replace))
    print_result(added, f"Connection {added.name} is ready to be tested.", as_json=connection.as_json)


@app.add()
@connection_options
def test(connection: ConnectionOptions, name: Name) -> None:
    """Connect to the broker, and say what was found. No message is sent.

    Example

      evertick connections test orders
    """
    found = call(connection, lambda backend: backend.test_connection(name))
    text = f"It can be used: {found.detail}." if found.is_usable else f"It cannot be used: {found.detail}."
    print_result(found, text, as_json=connection.as_json)
    if not found.is_usable:
        raise click.exceptions.Exit(1)


@app.add()
@connection_options
def remove(connection: ConnectionOptions, name: Name) -> None:
    """Remove a connection that no job uses.

    Example

      evertick connections remove orders
    """
    call(connection, lambda backend: backend.remove_connection(name))
    print_result({"name": name}, f"Connection {name} is removed.", as_json=connection.as_json)


def _secrets(kind: BrokerType, asked: list[str] | tuple[str, ...], files: dict[str, str]) -> dict[str, str]:
    unknown = sorted({*asked, *files} - set(SECRETS[kind]))
    if unknown:
        raise click.BadParameter(f"a connection of type {kind} has no secret {unknown[0]}: {', '.join(SECRETS[kind])}")
    found = {name: click.prompt(name, hide_input=True) for name in asked}
    for name, path in files.items():
        try:
            text = sys.stdin.read() if path == STDIN else Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise click.BadParameter(f"--secret-file {name}={path}: {error}") from None
        found[name] = text.removesuffix("\n").removesuffix("\r")
    return found


def _row(found: BrokerConnection) -> tuple[object, ...]:
    settings = ", ".join(
        f"{name}={value}" for name, value in found.settings.items() if value is not None and name != _LONG
    )
    return found.name, found.type, settings, ", ".join(found.secrets), found.updated_at
