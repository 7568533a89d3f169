"""The page that Prometheus reads: the text format, version 0.0.4."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from evertick.metrics.catalog import ALL, PROCESS
from evertick.metrics.instruments import NOTHING, Gauge, Instrument, Labels, Sample, number

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STARTED = time.time()
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


def page(cluster: Mapping[Gauge, Mapping[Labels, float]]) -> bytes:
    """The figures of this process, and those of the whole cluster that the caller has."""
    lines: list[str] = []
    for instrument in ALL:
        if isinstance(instrument, Gauge):
            samples = instrument.samples(cluster.get(instrument, NOTHING))
        else:
            samples = instrument.samples()
        lines += _lines(instrument, samples)
    lines += _process_lines()
    return ("\n".join(lines) + "\n").encode()


def _lines(instrument: Instrument, samples: Iterable[Sample]) -> Iterator[str]:
    is_first = True
    for suffix, labels, value in samples:
        if is_first:
            yield f"# HELP {instrument.name} {instrument.text}"
            yield f"# TYPE {instrument.name} {instrument.kind}"
            is_first = False
        told = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels)
        yield f"{instrument.name}{suffix}{f'{{{told}}}' if told else ''} {number(value)}"


def _process_lines() -> Iterator[str]:
    """What every client of Prometheus tells about its process."""
    values = {"process_start_time_seconds": _STARTED, "process_cpu_seconds_total": time.process_time()}
    with suppress(OSError):  # there is no /proc elsewhere
        with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123 - the shortest
            pages = int(statm.read().split()[1])
        values["process_resident_memory_bytes"] = pages * os.sysconf("SC_PAGE_SIZE")
        values["process_open_fds"] = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as above
    for name, value in values.items():
        kind, text = PROCESS[name]
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} {kind}"
        yield f"{name} {number(value)}"
