"""The roles: scheduler, worker, dispatcher and janitor. Each fetches from the store, asks the domain, and writes what
that decided. Roles do not import each other; worker and dispatcher run attempts by the `executor`.
"""
