# %% [markdown]
# # From a pretrained checkpoint to a service
#
# Fine-tune a checkpoint of `transformers`, look at its attention, and answer HTTP requests with it. So that this
# notebook needs no network, a tiny BERT with random weights is made in place of a real checkpoint: see the cell
# *Pipeline*. Everything is written to a new temporary folder.

# %%
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import seqpipe

os.chdir(tempfile.mkdtemp())

# %% [markdown]
# ## Data

# %%
GOOD = ["great", "lovely", "delicious", "superb", "charming", "not bad at all"]
BAD = ["awful", "stale", "dull", "a waste of money", "not good", "not lovely at all"]
THINGS = ["soup", "music", "service", "film", "dessert", "room"]
dice = random.Random(1)
for name, count in (("train", 400), ("dev", 60), ("test", 60)):
    lines = []
    for _ in range(count):
        label, words = dice.choice([("positive", GOOD), ("negative", BAD)])
        text = f"the {dice.choice(THINGS)} was {dice.choice(words)}, we came on a {dice.choice(['Monday', 'Friday'])}"
        lines.append(json.dumps({"text": text, "label": label}))
    Path(f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

# %% [markdown]
# ## Pipeline
#
# For a real checkpoint write its folder or its name on the hub in place of `tiny-bert`, such as
# `sentence-transformers/all-MiniLM-L6-v2`, delete the key `needs`, and set `lr` of the encoder to 0.00005.

# %%
CHECKPOINT = "tiny-bert"
pipeline = seqpipe.Pipeline(
    {
        "name": "reviews",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "needs": [{"path": CHECKPOINT, "make": "tiny-bert"}],
        "tokenizer": {"use": "pretrained", "checkpoint": CHECKPOINT},
        "encoder": {"use": "pretrained", "checkpoint": CHECKPOINT, "lr": 0.001},
        "head": {"use": "label", "pool": "attention"},
        "train": {"epochs": 6, "batch_tokens": 512, "optimizer": {"use": "adamw", "lr": 0.005}},
        "export": {"explain": True},
    }
)
run = pipeline.run(device="cpu")
run

# %% [markdown]
# With `export: {explain: true}` the bundle also returns attention weights, which `show` draws. They show how much
# each word contributes inside the model, not the reasons for the answer.

# %%
model = run.bundle.load("cpu")
seqpipe.show(model, "the soup was not good, we came on a Monday")

# %% [markdown]
# ## Service
#
# `seqpipe serve` needs no PyTorch. It has a page for browsers at `/`, and answers `POST /v1/NAME`.

# %%
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
command = [sys.executable, "-m", "seqpipe", "serve", f"reviews={run.bundle.path}", "--port", str(port)]
server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ask(text):
    """Send a text to the server, and return its answer."""
    body = json.dumps({"inputs": text}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/reviews", body)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


for _ in range(150):  # until it is ready
    try:
        answer = ask("the music was great, we came on a Friday")
        break
    except urllib.error.URLError:
        time.sleep(0.2)
answer

# %%
assert answer["answer"] == model("the music was great, we came on a Friday")

# %% [markdown]
# The server ends after it has answered all accepted requests:

# %%
server.send_signal(signal.SIGTERM)
server.wait(timeout=60)
