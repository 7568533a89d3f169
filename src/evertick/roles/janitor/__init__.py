"""The janitor: keeps the database fit for the others."""

from evertick.roles.janitor.janitor import Janitor, JanitorReport, janitor_pool

__all__ = ["Janitor", "JanitorReport", "janitor_pool"]
