"""The `evertick` command: parses arguments, calls use cases or the API, prints results."""
