"""Figures about this process for Prometheus: what is counted (`catalog`), how (`instruments`), as text (`exposition`).

All roles of a process count into the same instruments. Nothing here needs a server's packages, since remote workers
have figures too.
"""
