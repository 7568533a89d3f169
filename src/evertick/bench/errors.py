"""What keeps a measurement from its end."""

from evertick.domain.errors import EvertickError


class BenchFailed(EvertickError):  # noqa: N818 - says what happened
    """A measurement came to nothing; the message says why."""
