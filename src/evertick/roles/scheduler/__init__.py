"""The scheduler: holds partitions and fires their timers."""

from evertick.roles.scheduler.scheduler import Scheduler

__all__ = ["Scheduler"]
