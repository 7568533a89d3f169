"""The roles: loops that fetch from the store, ask the domain and write what it decided.

Roles do not import each other. Worker and dispatcher are executors.
"""
