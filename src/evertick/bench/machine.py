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
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "evertick": evertick.__version__,
        "tzdb": tzdb.VERSION,
    }
