"""A bundle behind LitServe, which puts up to 32 requests that wait into a batch.

python litserve_server.py BUNDLE PORT
"""

from __future__ import annotations

import sys
from typing import Any

import litserve

BATCH = 32


class Api(litserve.LitAPI):
    def setup(self, device: str) -> None:
        import seqpipe

        self.model = seqpipe.load(sys.argv[1], "cpu", 1)

    def decode_request(self, request):  # type: ignore[no-untyped-def] # LitServe would take a type for FastAPI's
        return request["inputs"]

    def batch(self, inputs: list[str]) -> list[str]:
        return inputs

    def predict(self, inputs: list[str]) -> list[Any]:
        return self.model(inputs)

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"answer": output}


if __name__ == "__main__":
    api = Api(max_batch_size=BATCH, batch_timeout=0.0)
    server = litserve.LitServer(api, accelerator="cpu", devices=1, workers_per_device=1, fast_queue=True)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", generate_client_file=False)
