"""Integrations with web frameworks, one module or package for each. Each needs its framework, and nothing else does."""
