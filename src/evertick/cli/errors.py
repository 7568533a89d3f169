"""Turns errors into lines on stderr and exit codes. Commands show no tracebacks for errors that users can cause."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING

import click

from evertick.cli.output import print_line
from evertick.domain.errors import EvertickError, InvalidFields, InvalidInput

if TYPE_CHECKING:
    from evertick.client.errors import ApiError

# What errors there can be is imported when there is one: it takes longer than most commands.


class Exit(IntEnum):
    """The exit codes that scripts rely on."""

    DONE = 0
    FAILED = 1  # the operation failed
    USAGE = 2  # the command line or its values are invalid; Click uses the same code
    UNREACHABLE = 3  # no connection to the server or database


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Replace an expected exception by lines on stderr and an exit code. Unexpected exceptions pass: they are bugs."""
    try:
        yield
    except EvertickError as error:
        for line in error_lines(error):
            print_line(f"Error: {line}", err=True)
        raise click.exceptions.Exit(exit_code_of(error)) from None
    except Exception as error:
        from evertick.runtime.loop import diagnose_database  # noqa: PLC0415

        # The driver has no common class for connection errors: `diagnose_database` recognises them.
        if diagnose_database(error) is None:
            raise
        print_line(f"Error: lost the connection to the database: {type(error).__name__}: {error}", err=True)
        raise click.exceptions.Exit(Exit.UNREACHABLE) from None


def exit_code_of(error: EvertickError) -> Exit:
    from evertick.client.errors import ApiError, Invalid, Unreachable  # noqa: PLC0415
    from evertick.config.reading import ConfigInvalid  # noqa: PLC0415
    from evertick.store.errors import DatabaseUnreachable, NoDatabase  # noqa: PLC0415
    from evertick.store.server.programs import EmbeddedServerError  # noqa: PLC0415
    from evertick.usecases.errors import NameTaken  # noqa: PLC0415

    match error:
        case DatabaseUnreachable() | EmbeddedServerError() | NoDatabase() | Unreachable():
            return Exit.UNREACHABLE
        case ApiError(status=502 | 503 | 504):
            return Exit.UNREACHABLE  # a proxy answers, the server behind it does not
        case NameTaken():
            return Exit.FAILED
        case InvalidInput() | InvalidFields() | ConfigInvalid() | Invalid():
            return Exit.USAGE
        case _:
            return Exit.FAILED


def error_lines(error: EvertickError) -> list[str]:
    """One line for each fault of an error."""
    from evertick.client.errors import ApiError, ServerError  # noqa: PLC0415

    match error:
        case InvalidFields():
            return fault_lines(error.faults)
        case ApiError(errors=faults) if faults:
            return fault_lines(faults)
        case ServerError(request_id=str(number)):
            return [f"{_summary(error)} (request {number})"]
        case ApiError():
            return [_summary(error)]
        case _:
            return [str(error)]


def fault_lines(faults: Iterable[tuple[str, str]]) -> list[str]:
    """One line for each fault of a document, with the name of its field."""
    return [f"{pointer.lstrip('/') or 'job'}: {reason}" for pointer, reason in faults]


def _summary(error: "ApiError") -> str:
    return error.detail or error.problem.title or str(error)
