"""Delivers attempts to HTTP endpoints: signed, guarded, and within one deadline."""
