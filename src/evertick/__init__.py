"""Evertick: a distributed job scheduler that accounts for every tick."""

from evertick.version import __version__

__all__ = ["__version__"]
