"""What people and programs do with runs: read, request, cancel, replay and pull them."""
