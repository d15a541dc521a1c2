"""Cold process of `seqpipe bench`: open a bundle, answer once, print the times and the memory as JSON.

It is a separate file because its start is measured: it imports only what it needs.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path


def memory(process: int | str = "self") -> dict[str, float] | None:
    """Return the resident memory of a process and its peak, in MiB; None on a system without /proc."""
    path = Path(f"/proc/{process}/status")
    if not path.exists():
        return None
    kib = dict(re.findall(r"^(\w+):\s+(\d+) kB$", path.read_text(), re.MULTILINE))
    return {name: round(int(kib[key]) / 1024, 1) for name, key in (("resident_mib", "VmRSS"), ("peak_mib", "VmHWM"))}


def main(bundle: str, device: str, threads: str, record: str, options: str) -> None:
    clock = time.perf_counter()
    from seqpipe.runtime.opened import open_bundle

    model = open_bundle(bundle, device, int(threads))
    load_s, clock = time.perf_counter() - clock, time.perf_counter()
    model(json.loads(record), **json.loads(options))
    times = {"load_s": load_s, "answer_s": time.perf_counter() - clock}
    print(json.dumps([times, memory()]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
