"""Evertick in a Python program: `App` declares handlers and jobs, submits runs, and works them off."""
