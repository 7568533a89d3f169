"""The HTTP API: routes that read requests, call use cases and write answers. What may be done is decided below."""
