"""Groups of commands that are imported when they are called: importing all of them takes seconds.

Help and completion show what is known of a command without importing it.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


class LazyGroup(TyperGroup):
    """`later`: by name, the module and the name in it of each such command, and its first sentence."""

    later: ClassVar[Mapping[str, tuple[str, str]]] = {}

    # The types of commands and contexts are private to Typer.
    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *self.later]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """For the help and for completion: what is called is resolved."""
        if cmd_name in self.later:
            return TyperCommand(cmd_name, help=self.later[cmd_name][1])
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in self.later:
            return args[0], self.load(args[0]), args[1:]
        return super().resolve_command(ctx, args)

    def load(self, name: str) -> Any:
        module, _, attribute = self.later[name][0].partition(":")
        return command_of(name, getattr(import_module(f"evertick.cli.commands.{module}"), attribute))


def command_of(name: str, found: Any) -> Any:
    """The command that a Typer app or a function is."""
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(rich_markup_mode="rich")
        found.command(name)(function)
    command = typer.main.get_command(found)
    command.name = name
    return command
