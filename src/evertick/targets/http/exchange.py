"""One request on its way. What the network library calls back knows only a name or an address; here is whose it is."""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Exchange:
    """`is_new`: a connection was made for it; else it goes over one that was there before."""

    tenant_id: int
    origin: str
    is_new: bool = False
    is_kept: bool = True


current: ContextVar[Exchange] = ContextVar("exchange")
