"""How a measurement tells how far it is; showing it is the command line's."""

from typing import Protocol


class Progress(Protocol):
    """Whoever watches."""

    def begin(self, what: str, total: float | None = None) -> None:
        """Something begins that takes its time: so many steps, if that is known."""

    def reach(self, done: float) -> None:
        """So many steps of it are done."""
