"""`evertick config`: checks the settings. Needs no server."""

import tomllib

import click

from evertick.cli.connection import config_file, profile_faults
from evertick.cli.errors import Exit
from evertick.cli.options import AsJson
from evertick.cli.output import print_json, print_line
from evertick.cli.signatures import CommandGroup
from evertick.config.reading import ConfigInvalid, read_settings

app = CommandGroup(help="Check the settings.")


@app.add()
def check(as_json: AsJson = False) -> None:
    """Report all faults of the settings, in the environment and in the config file. Exit code 2 if there are any.

    Examples

      evertick config check

      EVERTICK_CONFIG=/etc/evertick.toml evertick config check --json
    """
    faults = [*_settings_faults(), *_profile_faults()]
    if as_json:
        print_json({"faults": faults})
    elif not faults:
        click.echo("The settings are valid.")
    else:
        for fault in faults:
            print_line(f"Error: {fault}", err=True)
    if faults:
        raise click.exceptions.Exit(Exit.USAGE)


def _settings_faults() -> tuple[str, ...]:
    try:
        read_settings()
    except ConfigInvalid as invalid:
        return invalid.faults
    return ()


def _profile_faults() -> list[str]:
    path = config_file()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return []  # `_settings_faults` reports a file that cannot be read
    return [f"{path}: {fault}" for fault in profile_faults(content.get("profiles", {}))]
