"""A bundle behind BentoML with adaptive batching.

python bentoml_server.py BUNDLE PORT
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import bentoml

BATCH = 32


@bentoml.service(workers=1, traffic={"timeout": 60, "max_concurrency": 1024}, logging={"access": {"enabled": False}})
class Bundle:
    def __init__(self) -> None:
        import seqpipe

        self.model = seqpipe.load(os.environ["BENCH_BUNDLE"], "cpu", 1)

    @bentoml.api(batchable=True, max_batch_size=BATCH, max_latency_ms=1000)
    def answer(self, texts: list[str]) -> list[Any]:
        return self.model(texts)


if __name__ == "__main__":
    os.environ |= {"BENCH_BUNDLE": str(Path(sys.argv[1]).absolute()), "BENTOML_DO_NOT_TRACK": "true"}
    module = Path(__file__)
    program = Path(sys.executable).with_name("bentoml")
    address = ["--host", "127.0.0.1", "--port", sys.argv[2]]
    os.execv(program, [str(program), "serve", f"{module.stem}:Bundle", "--working-dir", str(module.parent), *address])
