"""Runs users' functions: leases attempts, executes them in this process, records how they ended."""
