"""Pages of the reference that are made from the code; `docs/generate.py` writes them."""
