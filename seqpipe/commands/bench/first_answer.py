"""A cold process: opens a bundle, gives one answer, and prints how long each took and its memory, as JSON."""

from __future__ import annotations

import json
import sys
import time


def main(bundle: str, device: str, threads: str, record: str, options: str) -> None:
    clock = time.perf_counter()
    from seqpipe import load

    model = load(bundle, device, int(threads))
    load_s, clock = time.perf_counter() - clock, time.perf_counter()
    model(json.loads(record), **json.loads(options))
    times = {"load_s": load_s, "answer_s": time.perf_counter() - clock}
    from seqpipe.commands.bench.memory import memory

    print(json.dumps([times, memory()]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
