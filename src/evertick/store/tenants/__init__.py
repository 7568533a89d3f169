"""Tenants: their keys, secrets and usage, their audit log, and the answers that are stored for them."""
