# %% [markdown]
# # Train a classifier and ship it
#
# From a CSV to a bundle that answers without PyTorch: a table of requests, each with its intent. Everything is
# written to a new temporary folder. Install seqpipe in a checkout, with
# `pip install -c constraints.txt -e ".[train,cpu,notebook,report]"`.

# %%
import csv
import os
import random
import shutil
import tempfile
from pathlib import Path

import seqpipe

os.chdir(tempfile.mkdtemp())

# %% [markdown]
# ## Data
#
# Replace this cell by your own file: one column of texts, one of labels, in any order.

# %%
ASKS = {
    "delivery": [
        "where is my {thing}",
        "when does the {thing} arrive",
        "the {thing} has not come yet",
        "track my {thing}",
    ],
    "refund": ["i want my money back for the {thing}", "refund the {thing}", "the {thing} is broken, give me a refund"],
    "opening hours": ["when do you open on {day}", "are you open on {day}", "until when is the shop open on {day}"],
}
THINGS = ["parcel", "lamp", "chair", "phone", "blue jacket", "second order", "bike"]
DAYS = ["Monday", "Tuesday", "Friday", "Sunday", "Easter"]
GREETINGS = ["", "hello, ", "please help: ", "hi! "]

dice = random.Random(1)
rows = []
for intent, texts in ASKS.items():
    for _ in range(100):
        text = dice.choice(texts).format(thing=dice.choice(THINGS), day=dice.choice(DAYS))
        rows.append((dice.choice(GREETINGS) + text, intent))
dice.shuffle(rows)
with open("requests.csv", "w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("text", "intent"), *rows])

# %% [markdown]
# ## Pipeline
#
# `Pipeline.init` looks at the file and writes a YAML for it, as the command `seqpipe init` does. Every setting is in
# that file.

# %%
pipeline = seqpipe.Pipeline.init("requests.csv")
print(Path("requests.yaml").read_text(encoding="utf-8"))

# %% [markdown]
# ## Training
#
# A bar shows the progress. `on_epoch` is called with the history after each epoch; a true result ends the training.
# The stop button of the notebook (or Ctrl-C) saves a checkpoint, and the same cell resumes from it.


# %%
def is_good_enough(history):
    return history[-1]["dev"]["accuracy"] == 1 and len(history) >= 5


run = pipeline.run(device="cpu", on_epoch=is_good_enough)
run

# %%
run.history

# %% [markdown]
# ## Answers
#
# `show` draws an answer on its text: here the probability of each label.

# %%
model = run.bundle.load("cpu")
seqpipe.show(model, ["my lamp never arrived", "is the shop open tomorrow?"])

# %% [markdown]
# The answers themselves are plain dicts:

# %%
model("my lamp never arrived")

# %% [markdown]
# ## Ship it
#
# The bundle is a folder. The machine that it is copied to needs no PyTorch: `pip wheel --no-deps .` in the checkout
# writes the wheel of seqpipe, and `pip install "./seqpipe_nlp-0.1.0-py3-none-any.whl[cpu]"` installs it there.
# `verify` repeats the golden examples of the bundle.

# %%
shipped = Path(shutil.copytree(run.bundle.path, "shipped"))
print(sorted(path.name for path in shipped.iterdir()), sum(path.stat().st_size for path in shipped.iterdir()), "bytes")
seqpipe.Bundle(shipped).verify("cpu")
