"""Delivers attempts to message brokers, over the connections of their tenants."""
