"""The roles: loops that fetch from the store, ask the domain and write what it decided.

Roles do not know each other, but for the dispatcher: it is a worker whose one handler is a delivery.
"""
