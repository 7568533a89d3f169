"""Attempts straight from the database: ranges of lanes are leased, and outcomes recorded in large batches."""
