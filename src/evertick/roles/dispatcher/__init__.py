"""Delivers webhooks: leases the attempts of HTTP jobs, calls their targets, records what these answered."""

from evertick.roles.dispatcher.dispatcher import Dispatcher

__all__ = ["Dispatcher"]
