"""Measurements of Evertick itself, one module per scenario; the command line prints them."""
