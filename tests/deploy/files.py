"""Checks that files in several formats share: the commands and settings in them are those of this version."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from evertick.cli.main import app
from evertick.config.reading import FILE_SUFFIX, PREFIX
from evertick.config.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def parse(arguments: Sequence[str]) -> str:
    """The name of the command that these arguments of `evertick` call. Raises click's UsageError if they are wrong."""
    context = app.make_context("evertick", list(arguments))
    name, *rest = arguments
    _, command, _ = app.resolve_command(context, [name])
    assert command is not None, f"there is no command {name}"
    command.make_context(name, rest, parent=context)
    return name


def unknown_settings(names: Iterable[str]) -> list[str]:
    """Which variables with our prefix are not settings."""
    known = {PREFIX + each.name.upper() for each in fields(Settings)}
    secret = {PREFIX + each.name.upper() + FILE_SUFFIX for each in fields(Settings) if each.metadata["is_secret"]}
    return [name for name in names if name.startswith(PREFIX) and name not in known | secret]


def is_pinned(image: str) -> bool:
    """Whether an image has a version: a tag with a digit, or one of our own."""
    _, _, tag = image.rpartition("/")[2].partition(":")
    return tag != "latest" and (any(character.isdigit() for character in tag) or image.startswith("evertick:"))
