"""How far an import is: a bar on stderr for people who watch, and nothing for a pipe or a log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

MANY = 20
"""From so many jobs on, a bar shows how far it is."""


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar; what it gives is told how many more are done."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=total < MANY or not console.is_terminal) as bar:
        task = bar.add_task("Importing", total=total)
        yield lambda done: bar.advance(task, done)
