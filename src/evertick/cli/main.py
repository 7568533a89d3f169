"""The root of the `evertick` command and its exit codes."""

import typer

app = typer.Typer(no_args_is_help=True, help="A distributed job scheduler: every tick accounted for.")


def main() -> None:
    app()
