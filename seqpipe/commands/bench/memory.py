"""The memory of a process, as Linux reports it."""

from __future__ import annotations

import re
from pathlib import Path

_KEYS = {"resident_mib": "VmRSS", "peak_mib": "VmHWM"}


def memory(process: int | str = "self") -> dict[str, float] | None:
    """The resident memory of a process and its peak, in MiB; None on a system without /proc."""
    path = Path(f"/proc/{process}/status")
    if not path.exists():
        return None
    kib = dict(re.findall(r"^(\w+):\s+(\d+) kB$", path.read_text(), re.MULTILINE))
    return {name: round(int(kib[key]) / 1024, 1) for name, key in _KEYS.items()}
