"""The janitor: keeps the tables in order for the other roles."""

from evertick.roles.janitor.janitor import Janitor, JanitorReport, janitor_pool

__all__ = ["Janitor", "JanitorReport", "janitor_pool"]
