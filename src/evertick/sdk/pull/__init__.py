"""The parts of the remote worker: what it leases over HTTP, how it keeps it, how it tells what became of it."""
