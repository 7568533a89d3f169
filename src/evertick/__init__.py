"""Evertick: a distributed job scheduler that accounts for every tick."""

from evertick.domain.errors import EvertickError, InvalidInput, InvalidSchedule
from evertick.domain.schedule.schedule import Schedule
from evertick.version import __version__

__all__ = ["EvertickError", "InvalidInput", "InvalidSchedule", "Schedule", "__version__"]
