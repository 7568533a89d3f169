"""Where a dispatcher delivers. A target is a class with one method, `async deliver(attempt) -> AttemptOutcome`.

It keeps the attempt's timeout itself, answers `NotStarted` if nothing was sent, and raises nothing for what may happen.
"""
