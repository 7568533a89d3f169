"""Decides where targets may connect to, and how many deliveries of a tenant use one resource at once."""
