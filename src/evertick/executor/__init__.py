"""Executes attempts: leases them from a source, runs their handlers in this process, records how they ended."""
