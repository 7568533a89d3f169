"""The server: its connections and their limits, and the API as a role of a process."""

from evertick.api.server.server import ApiServer
from evertick.runtime.process import CannotListen

__all__ = ["ApiServer", "CannotListen"]
