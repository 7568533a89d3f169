"""`docs/reference/cli.md`: every command with its arguments and options, from Click."""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, NamedTuple

import click

from evertick.cli.main import app
from evertick.cli.signatures import first_sentence, split_examples

_INTRO = """\
# Command line

<!-- Generated from the commands in cli/commands: edit there, then run `python docs/generate.py`. -->

`evertick COMMAND --help` shows the same in the terminal.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 server or database unreachable."""

_SHARED_INTRO = """\
## Shared options

Many commands have these options; below they are only named. They say which server or database a command uses. Without
any of them it is the server of `EVERTICK_URL` with `EVERTICK_API_KEY`, or the database of `EVERTICK_DATABASE_URL`, or
the embedded one in the data directory ([settings](../settings.md))."""

_SHARED_AT = 20
"""An option that so many commands have, with the same words, is described once."""


class _Command(NamedTuple):
    path: tuple[str, ...]
    command: Any

    @property
    def arguments(self) -> list[Any]:
        return [each for each in self.command.params if not each.opts[0].startswith("-")]

    @property
    def options(self) -> list[Any]:
        return [each for each in self.command.params if each.opts[0].startswith("-") and not each.hidden]


def cli_page() -> str:
    root = app
    commands = list(_commands(root, ("evertick",)))
    rows = Counter(_row(option) for each in commands for option in each.options)
    shared = [row for row, count in rows.items() if count >= _SHARED_AT]
    parts = [_INTRO, _overview(root), _SHARED_INTRO, _table("option", shared)]
    group = ""
    for each in commands:
        if each.path[1] != group:
            group = each.path[1]
            parts.append(f"## {group}")
            if len(each.path) > 2:
                parts.append(first_sentence(root.load(group).help))
        parts += _described(each, set(shared))
    return "\n\n".join(parts) + "\n"


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[_Command]:
    if not hasattr(command, "list_commands"):
        yield _Command(path, command)
        return
    context = click.Context(command, info_name=path[-1])
    for name in command.list_commands(context):
        yield from _commands(_child(command, context, name), (*path, name))


def _child(group: Any, context: click.Context, name: str) -> Any:
    """A command itself: the help of its group has only its first sentence, so as not to import it."""
    return group.load(name) if name in getattr(group, "later", {}) else group.get_command(context, name)


def _overview(root: Any) -> str:
    names = root.list_commands(click.Context(root, info_name="evertick"))
    rows = [f"| [`{name}`](#{name}) | {_cell(first_sentence(root.load(name).help))} |" for name in names]
    return "\n".join(["| command | does |", "|---|---|", *rows])


def _described(each: _Command, shared: set[str]) -> Iterator[str]:
    if len(each.path) > 2:
        yield f"### {' '.join(each.path[1:])}"
    text, examples = split_examples(each.command.help)
    yield text
    yield f"```text\n{_usage(each)}\n```"
    if each.arguments:
        yield _table("argument", [_row(argument) for argument in each.arguments])
    own = [row for option in each.options if (row := _row(option)) not in shared]
    if own:
        yield _table("option", own)
    if also := [option.opts[0] for option in each.options if _row(option) in shared]:
        yield "Also: " + ", ".join(f"`{name}`" for name in also) + "."
    if examples:
        yield "```console\n" + "\n".join(_prompted(examples)) + "\n```"


def _prompted(lines: Iterable[str]) -> Iterator[str]:
    """With a prompt before each command, but not where one goes on."""
    goes_on = False
    for line in lines:
        yield f"  {line}" if goes_on else f"$ {line}"
        goes_on = line.endswith("\\")


def _usage(each: _Command) -> str:
    words = [_argument(argument) for argument in each.arguments]
    return " ".join([*each.path, "[OPTIONS]", *words])


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    name += "..." if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def _row(parameter: Any) -> str:
    if parameter.opts[0].startswith("-"):
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        value = _value(parameter)
        names += f" `{value}`" if value else ""
    else:
        names = f"`{_argument(parameter)}`"
    notes = [parameter.help, *_default(parameter), *(["Required."] if _is_required_option(parameter) else [])]
    return f"| {names} | {_cell(' '.join(filter(None, notes)))} |"


def _is_required_option(parameter: Any) -> bool:
    return parameter.required and parameter.opts[0].startswith("-")


def _value(option: Any) -> str:
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice) and not option.metavar:
        return "|".join(option.type.choices)
    return option.metavar or option.type.name.partition(" ")[0].upper()


def _default(parameter: Any) -> list[str]:
    default = parameter.default
    if parameter.required or callable(default) or default is False or default in (None, (), [], ""):
        return []
    if default is True:
        return ["On by default."]
    return [f"Default: `{default.value if isinstance(default, Enum) else default}`."]


def _table(head: str, rows: Iterable[str]) -> str:
    return "\n".join([f"| {head} | meaning |", "|---|---|", *rows])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
