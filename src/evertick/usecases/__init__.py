"""What people and programs do with jobs and runs: one function per operation, shared by API, command line and App."""
