"""What a command says on stderr when it cannot do its work, and the exit code that goes with it. No tracebacks."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import typer

from evertick.cli.exit_codes import Exit
from evertick.cli.output import say
from evertick.client.errors import ApiError, Conflict, Invalid, ServerError, Unreachable
from evertick.config import ConfigInvalid
from evertick.domain.errors import EvertickError, InvalidFields, InvalidInput
from evertick.store.database import DatabaseUnreachable, is_transient
from evertick.store.embedded_programs import EmbeddedServerError
from evertick.usecases.errors import NameTaken, TenantNameTaken
from evertick.wiring import NoDatabase

REFUSALS = (InvalidFields, InvalidInput, Invalid, Conflict)
"""What was asked for cannot be done as it is; something else may."""


@contextmanager
def reported() -> Iterator[None]:
    """End the command with a line for people instead of an exception; what is nobody's fault but ours passes."""
    try:
        yield
    except EvertickError as error:
        for line in lines_of(error):
            say(f"Error: {line}", err=True)
        raise typer.Exit(exit_code_of(error)) from None
    except Exception as error:
        # The driver's errors have no class of their own for what passes by itself: `is_transient` knows them.
        if not is_transient(error):
            raise
        say(f"Error: the database went away: {type(error).__name__}: {error}", err=True)
        raise typer.Exit(Exit.UNREACHABLE) from None


def exit_code_of(error: EvertickError) -> Exit:
    match error:
        case DatabaseUnreachable() | EmbeddedServerError() | NoDatabase() | Unreachable():
            return Exit.UNREACHABLE
        case ApiError(status=502 | 503 | 504):
            return Exit.UNREACHABLE  # something answers, but not with what it stands for
        case NameTaken() | TenantNameTaken():
            return Exit.FAILED  # understood, but it cannot be done
        case InvalidInput() | InvalidFields() | ConfigInvalid() | Invalid():
            return Exit.USAGE
        case _:
            return Exit.FAILED


def lines_of(error: EvertickError) -> list[str]:
    """Each thing that is wrong."""
    match error:
        case InvalidFields():
            return fault_lines(error.faults)
        case ApiError(errors=faults) if faults:
            return fault_lines(faults)
        case ServerError(request_id=str(number)):
            return [f"{_said(error)} (request {number})"]
        case ApiError():
            return [_said(error)]
        case _:
            return [str(error)]


def fault_lines(faults: Iterable[tuple[str, str]]) -> list[str]:
    """Each fault of a document, by the name of what it is in."""
    return [f"{pointer.lstrip('/') or 'job'}: {reason}" for pointer, reason in faults]


def _said(error: ApiError) -> str:
    return error.detail or error.problem.title or str(error)
