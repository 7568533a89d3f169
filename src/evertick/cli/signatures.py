"""Commands of Click from the signatures of functions: each parameter is an argument or an option.

`Annotated[int, Option(min=1, help="…")] = 50` says all of it. Typer works in the same way, but imports pydantic to
convert a value, which takes longer than most commands. Modules of commands are imported when they are called.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NamedTuple, TextIO, TypeVar, get_args, get_origin

import click

_F = TypeVar("_F", bound=Callable[..., None])

_RANGES: Mapping[type, Any] = {int: click.IntRange, float: click.FloatRange}
MAX_WIDTH = 120
EXAMPLES = ("Examples", "Example")
"""The line of a docstring after which its examples follow. They are printed as they are written."""


class _Declared(NamedTuple):
    """What an annotation says about a parameter, beside its type."""

    is_option: bool
    flags: tuple[str, ...]
    help: str | None
    metavar: str | None
    min: float | None
    max: float | None
    callback: Callable[[Any], Any] | None
    parser: Callable[[str], Any] | click.ParamType[Any] | None
    show_default: bool
    is_eager: bool


def Option(  # noqa: N802 - reads as a declaration
    *flags: str,
    help: str | None = None,
    metavar: str | None = None,
    min: float | None = None,
    max: float | None = None,
    callback: Callable[[Any], Any] | None = None,
    parser: Callable[[str], Any] | click.ParamType[Any] | None = None,
    show_default: bool = True,
    is_eager: bool = False,
) -> Any:
    """An option. Without flags, the parameter's name is one. A callback takes the value and returns the one to use."""
    return _Declared(True, flags, help, metavar, min, max, callback, parser, show_default, is_eager)


def Argument(*, help: str | None = None, metavar: str | None = None) -> Any:  # noqa: N802 - as above
    return _Declared(False, (), help, metavar, None, None, None, None, False, False)


def _finite(value: float | None) -> float | None:
    """Click takes `nan` and `inf` for numbers, and `nan` for one in any range."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number.")
    return value


_CHECKS: Mapping[Any, Callable[[Any], Any]] = {float: _finite}


class _Choice(click.Choice[str]):
    """One of an enum's values."""

    def __init__(self, kind: type[Enum]) -> None:
        super().__init__([str(each.value) for each in kind])
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if isinstance(value, self._kind) else self._kind(super().convert(value, param, ctx))


class _Command(click.Command):
    """The examples of its docstring follow its options, and do not wrap."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - Click's
        text, _ = split_examples(self.help)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - Click's
        if examples := split_examples(self.help)[1]:
            with formatter.section(EXAMPLES[0]):
                formatter.write("".join(f"  {line}\n" for line in examples))


class CommandGroup(click.Group):
    """Commands that are functions, and those of modules that are imported when one of them is called.

    `later`: by name, the module and the name in it of each such command, and its first sentence. Help and completion
    show that without importing it.
    """

    def __init__(
        self, *, help: str, later: Mapping[str, tuple[str, str]] | None = None, epilog: str | None = None
    ) -> None:
        super().__init__(
            help=help, epilog=epilog, no_args_is_help=True, context_settings={"max_content_width": MAX_WIDTH}
        )
        self.later = later or {}
        self._functions: dict[str, tuple[Callable[..., None], str | None]] = {}

    def add(self, name: str | None = None, *, help: str | None = None) -> Callable[[_F], _F]:
        """A decorator: the function is a command of the group, by its name or another, with its docstring as help."""

        def register(function: _F) -> _F:
            self._functions[name or function.__name__.replace("_", "-")] = function, help
            return function

        return register

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """With the whole first sentence of each."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, first_sentence(each.help)) for name, each in found if each is not None])

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - Click's
        return [*self._functions, *self.later]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - Click's
        """For the help and for completion: what is called is resolved."""
        if cmd_name in self.later:
            return click.Command(cmd_name, help=self.later[cmd_name][1])
        if cmd_name not in self._functions:
            return None
        function, text = self._functions[cmd_name]
        return command_of(cmd_name, function, help=text)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self.later:
            return name, self.load(name), args[1:]
        if name not in self._functions and not name.startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches  # noqa: PLC0415 - for mistakes alone

            close = get_close_matches(name, self.list_commands(ctx))
            hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def load(self, name: str) -> click.Command:
        module, _, attribute = self.later[name][0].partition(":")
        found = getattr(import_module(f"evertick.cli.commands.{module}"), attribute)
        if not isinstance(found, click.Command):
            return command_of(name, found)
        found.name = name
        return found


def command_of(name: str, function: Callable[..., None], *, help: str | None = None) -> click.Command:
    """The command that calls a function."""
    parameters = [_parameter(each) for each in inspect.signature(function).parameters.values()]
    return _Command(name, params=parameters, callback=function, help=help or inspect.getdoc(function))


def split_examples(text: str | None) -> tuple[str, list[str]]:
    """What a command does, and the lines of its examples."""
    lines = (text or "").splitlines()
    for number, line in enumerate(lines):
        if line in EXAMPLES:
            return "\n".join(lines[:number]).strip(), [each.strip() for each in lines[number + 1 :] if each.strip()]
    return (text or "").strip(), []


def first_sentence(text: str | None) -> str:
    """Of the help: all of its first paragraph, on one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


def _parameter(parameter: inspect.Parameter) -> click.Parameter:
    if get_origin(parameter.annotation) is not Annotated:
        raise TypeError(f"{parameter.name} is neither an Option nor an Argument")
    kind, declared = get_args(parameter.annotation)
    kind = _without_none(kind)
    is_required = parameter.default is inspect.Parameter.empty
    default = None if is_required else parameter.default
    is_list = get_origin(kind) is list
    settings: dict[str, Any] = {
        "type": _type_of(get_args(kind)[0] if is_list else kind, declared),
        "metavar": declared.metavar,
        "required": is_required,
        # For Click, None is a value. A choice is typed, also in the help.
        **({} if is_required else {"default": default.value if isinstance(default, Enum) else default}),
        "callback": _callback(declared.callback or _CHECKS.get(kind), default, is_list=is_list),
        "is_eager": declared.is_eager,
        "help": declared.help,
    }
    if not declared.is_option:
        return click.Argument([parameter.name], nargs=-1 if is_list else 1, **settings)
    if kind is bool:
        settings |= {"is_flag": True, "type": None}
    flags = declared.flags or (f"--{parameter.name.replace('_', '-')}",)
    shows = declared.show_default and default is not None and default is not False
    return click.Option([parameter.name, *flags], multiple=is_list, show_default=shows, **settings)


def _without_none(kind: Any) -> Any:
    """`str` of `str | None`: an option without a default is None."""
    others = [each for each in get_args(kind) if each is not NoneType]
    return others[0] if NoneType in get_args(kind) and len(others) == 1 else kind


def _type_of(kind: Any, declared: _Declared) -> Any:
    if declared.parser is not None:
        return declared.parser
    if kind is TextIO:
        return click.File(encoding="utf-8")
    if not isinstance(kind, type):
        raise TypeError(f"options of type {kind} are not known")
    if issubclass(kind, Enum):
        return _Choice(kind)
    if issubclass(kind, Path):
        return click.Path(path_type=Path)
    is_limited = kind in _RANGES and (declared.min, declared.max) != (None, None)
    return _RANGES[kind](declared.min, declared.max) if is_limited else kind


def _callback(check: Callable[[Any], Any] | None, default: Any, *, is_list: bool) -> Any:
    if is_list:  # Click gives a tuple, also if the option is left out
        return lambda _context, _parameter, values: list(values) or default
    return None if check is None else lambda _context, _parameter, value: check(value)
