"""PostgreSQL servers: the embedded one, and temporary databases on any."""
