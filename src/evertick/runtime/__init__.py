"""What every role stands on: the database's clock, loops that survive errors, wake-ups and signals."""
