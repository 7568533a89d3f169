"""What every role is built on: the database's clock, loops that survive errors, wake-ups and signals."""
