"""The garbage collector in a process that runs roles: objects come and go by the batch, and hardly any form cycles."""

import gc

YOUNG = 3_000
"""Objects between two looks at the youngest, instead of 700: a batch of timers or attempts is tens of thousands. Not
many more: an error that a handler keeps in a variable is a cycle, and may hold a payload."""


def expect_batches() -> None:
    """Look for garbage less often, and never again in what the process is made of by now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 5, 10)
