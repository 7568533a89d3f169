"""Users' functions as handlers: what they are called with, and what their results and errors mean."""
