"""The forecast of firings, and smears: the jitter that it advises."""
