"""`evertick config check`: whether the settings of the environment and the config file can be used."""

import tomllib

import typer

from evertick.cli.exit_codes import Exit
from evertick.cli.options import AsJson
from evertick.cli.output import print_json, say
from evertick.cli.servers import config_file, profile_faults
from evertick.config import ConfigInvalid, read_settings

app = typer.Typer(no_args_is_help=True, help="Look at the settings.", rich_markup_mode="rich")


@app.callback()
def config() -> None:
    """Makes `check` a command of its own, although it is the only one."""


@app.command()
def check(as_json: AsJson = False) -> None:
    """Say all that is wrong with the settings, in the environment and in the config file. Exit code 2 if anything is.

    [bold]Examples[/bold]

      evertick config check

      EVERTICK_CONFIG=/etc/evertick.toml evertick config check --json
    """
    faults = [*_settings_faults(), *_profile_faults()]
    if as_json:
        print_json({"faults": faults})
    elif not faults:
        typer.echo("The settings can be used.")
    else:
        for fault in faults:
            say(f"Error: {fault}", err=True)
    if faults:
        raise typer.Exit(Exit.USAGE)


def _settings_faults() -> tuple[str, ...]:
    try:
        read_settings()
    except ConfigInvalid as refused:
        return refused.faults
    return ()


def _profile_faults() -> list[str]:
    path = config_file()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return []  # told with the settings, or no fault
    return [f"{path}: {fault}" for fault in profile_faults(content.get("profiles", {}))]
