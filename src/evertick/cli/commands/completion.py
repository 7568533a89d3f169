"""`evertick completion`: the script by which a shell completes commands and options."""

from enum import StrEnum
from typing import Annotated

import click
from click.shell_completion import get_completion_class

from evertick.cli.signatures import Argument


class Shell(StrEnum):
    """A shell that can complete commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, Argument(help="The shell to print the script for.")]) -> None:
    """Print a script by which a shell completes commands and options. Its startup file is the place to call it.

    Examples

      echo 'eval "$(evertick completion bash)"' >> ~/.bashrc

      echo 'eval "$(evertick completion zsh)"' >> ~/.zshrc

      evertick completion fish > ~/.config/fish/completions/evertick.fish
    """
    program = click.get_current_context().find_root()
    assert program.info_name is not None
    variable = f"_{program.info_name.replace('-', '_').upper()}_COMPLETE"
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(program.command, {}, program.info_name, variable).source())
