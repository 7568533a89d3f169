"""What a figure was measured on: no figure means anything without it."""

import os
import platform

import evertick
from evertick import tzdb


def machine() -> dict[str, str | int]:
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count() or 1,
        "evertick": evertick.__version__,
        "tzdb": tzdb.VERSION,
    }
