"""What the janitor keeps in order, and what the doctor looks at."""
