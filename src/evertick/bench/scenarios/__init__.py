"""The scenarios of `evertick bench`, one module each: what is measured, and how."""
