"""The janitor: keeps the database fit for the others."""

from evertick.roles.janitor.janitor import JANITOR_CONNECTIONS, Janitor, Report

__all__ = ["JANITOR_CONNECTIONS", "Janitor", "Report"]
