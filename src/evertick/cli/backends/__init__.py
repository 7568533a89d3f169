"""The two backends of commands: the HTTP API and the database."""
