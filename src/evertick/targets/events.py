"""What is the same in every event that targets send: CloudEvents' attributes of a run (https://cloudevents.io)."""

SPEC_VERSION = "1.0"
EVENT_TYPE = "evertick.run.fired"
SOURCE = "/evertick"
"""Begins the source of every run, unless the settings say otherwise."""
