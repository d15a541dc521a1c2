"""A process that calls a bundle from Python: `batched` or `singly` in, seconds of wall clock and processor out.

    python called.py BUNDLE TEXTS CORE

`batched` calls `model(texts)`, `singly` calls `model(text)` for each text and also gives the latency of each.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.sched_setaffinity(0, {int(sys.argv[3])})


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import seqpipe

    model = seqpipe.load(sys.argv[1], "cpu", 1)
    texts = Path(sys.argv[2]).read_text(encoding="utf-8").split("\n")
    model(texts)
    print(json.dumps(len(texts)), flush=True)
    for line in sys.stdin:
        latencies: list[float] = []
        wall, cpu = time.perf_counter(), time.process_time()
        if line.strip() == "batched":
            model(texts)
        else:
            for text in texts:
                clock = time.perf_counter()
                model(text)
                latencies.append(time.perf_counter() - clock)
        times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps({**times, "latencies": latencies}), flush=True)


main()
