"""Where an executor's attempts come from: the database, or the HTTP API of a server elsewhere."""
