"""The `evertick` command: reads arguments, prints results; decides nothing."""
