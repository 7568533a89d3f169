"""The janitor: keeps the database fit for the others."""

from evertick.roles.janitor.janitor import Janitor, Report, janitor_pool

__all__ = ["Janitor", "Report", "janitor_pool"]
