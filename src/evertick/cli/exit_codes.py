"""The exit codes that scripts may rely on."""

from enum import IntEnum


class Exit(IntEnum):
    """How a command ended."""

    DONE = 0
    FAILED = 1  # the thing that was asked for did not work
    USAGE = 2  # the command was not understood; Click uses the same
    UNREACHABLE = 3  # no connection to the server or database
