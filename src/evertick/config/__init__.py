"""Settings of a process: `settings` has them with their defaults, `values` how each is read, `reading` from where."""
