"""The ways to an Evertick: over its HTTP API, and directly on its database."""
