"""What a job is: its fields, the one validation that every way of making or editing a job shares, its first tick."""
