"""Attempts over the HTTP API of a server elsewhere: no database is needed."""
