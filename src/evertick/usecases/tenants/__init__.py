"""Tenants with their API keys, webhook secrets and quotas."""
