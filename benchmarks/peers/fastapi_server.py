"""A bundle behind plain FastAPI: a function that is called for each request, in one of its threads.

python fastapi_server.py BUNDLE PORT
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

import seqpipe


class Request(BaseModel):
    inputs: str


model = seqpipe.load(sys.argv[1], "cpu", 1)
app = FastAPI()


@app.post("/predict")
def predict(request: Request) -> dict[str, Any]:
    return {"answer": model(request.inputs)}


@app.get("/health")
def health() -> str:
    return "ok"


uvicorn.run(app, port=int(sys.argv[2]), loop="uvloop", http="httptools", access_log=False, log_level="warning")
