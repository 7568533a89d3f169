"""The janitor: keeps the tables in order for the other roles."""

from evertick.roles.janitor.janitor import Janitor, JanitorReport, janitor_pool
from evertick.roles.janitor.maintenance import Kept

__all__ = ["Janitor", "JanitorReport", "Kept", "janitor_pool"]
