"""What a command says on stderr when it cannot do its work, and the exit code that goes with it. No tracebacks."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from evertick.cli.exit_codes import Exit
from evertick.config import ConfigInvalid
from evertick.domain.errors import EvertickError, InvalidFields, InvalidInput
from evertick.store.database import DatabaseUnreachable, is_transient
from evertick.store.embedded_programs import EmbeddedServerError
from evertick.usecases.errors import NameTaken
from evertick.wiring import NoDatabase


@contextmanager
def reported() -> Iterator[None]:
    """End the command with a line for people instead of an exception; what is nobody's fault but ours passes."""
    try:
        yield
    except EvertickError as error:
        for line in _lines(error):
            typer.echo(f"Error: {line}", err=True)
        raise typer.Exit(exit_code_of(error)) from None
    except Exception as error:
        if not is_transient(error):
            raise
        typer.echo(f"Error: the database went away: {type(error).__name__}: {error}", err=True)
        raise typer.Exit(Exit.UNREACHABLE) from None


def exit_code_of(error: EvertickError) -> Exit:
    match error:
        case DatabaseUnreachable() | EmbeddedServerError() | NoDatabase():
            return Exit.UNREACHABLE
        case NameTaken():
            return Exit.FAILED  # understood, but it cannot be done
        case InvalidInput() | InvalidFields() | ConfigInvalid():
            return Exit.USAGE
        case _:
            return Exit.FAILED


def _lines(error: EvertickError) -> list[str]:
    if isinstance(error, InvalidFields):
        return [f"{pointer.lstrip('/') or 'job'}: {reason}" for pointer, reason in error.faults]
    return [str(error)]
