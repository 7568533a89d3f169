"""Everything Evertick decides, as pure functions and values: no I/O, clock, randomness or asyncio."""
