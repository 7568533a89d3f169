"""Ports for servers that are started later, or again: nobody is given them in the meantime.

They lie below those that the kernel chooses for connections and for servers without a port of their own.
"""

import itertools
import random
import socket
from contextlib import ExitStack

_FIRST, _END = 10_240, 32_768
_numbers = itertools.count(random.randrange(_END - _FIRST))  # each test process begins elsewhere, and goes on there


def free_ports(count: int) -> list[int]:
    """So many in a row that nobody listens on."""
    while True:
        ports = [_FIRST + next(_numbers) % (_END - _FIRST) for _ in range(count)]
        if ports == list(range(ports[0], ports[0] + count)) and _are_free(ports):
            return ports


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def _are_free(ports: list[int]) -> bool:
    with ExitStack() as listeners:
        try:
            for port in ports:
                listeners.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
