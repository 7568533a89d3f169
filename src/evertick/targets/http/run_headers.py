"""The headers that say which run a delivery is of, and what makes them trustworthy.

`webhook-signature` covers key, time and body, and no header beside them. So there is another one, of the same secrets:
over that signature and the run's headers, line by line. Whoever captured a delivery can neither change its fencing
token nor give it the headers of another.
"""

from collections.abc import Mapping

NAMES = (
    "Evertick-Run-Id",
    "Evertick-Job-Name",
    "Evertick-Scheduled-At",
    "Evertick-Attempt",
    "Evertick-Reason",
    "Evertick-Fencing-Token",
)
SIGNATURE = "Evertick-Signature"

# No key has a line break in it, so nothing that Standard Webhooks signs begins like this.
_FIRST_LINE = "evertick"


def message_of(webhook_signature: str, run: Mapping[str, str]) -> bytes:
    """What `Evertick-Signature` signs; `run` has a value for each of the names."""
    lines = (_FIRST_LINE, webhook_signature, *(run[name] for name in NAMES))
    return "\n".join(lines).encode("utf-8", "surrogatepass")
