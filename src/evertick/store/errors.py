"""Why there is no database to work with. A module of its own, which can be imported without the driver."""

from evertick.domain.errors import EvertickError


class DatabaseUnreachable(EvertickError):  # noqa: N818 - says what is wrong
    """No connection could be made; the message says where to and why, and never shows a password."""


class NoDatabase(EvertickError):  # noqa: N818 - says what is wrong
    """There is no database where one was expected; the message says what to do."""


class ArchiveUnavailable(EvertickError):  # noqa: N818 - as above
    """The storage of the archive cannot be used now."""


class ArchiveDamaged(ArchiveUnavailable):
    """A file of the archive does not hold what it should."""
