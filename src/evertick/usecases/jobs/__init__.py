"""What people and programs do with jobs: create, read, edit, pause, delete and preview them."""
