# %% [markdown]
# # Find the errors of a model
#
# Where does it fail, and is it better after a change of the data? The training data of this example lacks a way of
# asking, as real data does. Everything is written to a new temporary folder.

# %%
import csv
import os
import random
import tempfile

import seqpipe

os.chdir(tempfile.mkdtemp())

# %%
ASKS = {
    "account": ["i forgot my {secret}", "change my {secret}", "my {secret} does not work"],
    "refund": ["i want my money back for the {thing}", "how do i return the {thing}", "refund the {thing}"],
    "delivery": ["where is my {thing}", "when does the {thing} arrive", "track my {thing}"],
}
LACKING = {"account": ["how do i delete the account of my {thing}", "how do i close my account"]}
THINGS = ["parcel", "lamp", "chair", "phone", "jacket", "second order", "bike"]
SECRETS = ["password", "login", "email address", "user name"]
GREETINGS = ["", "hello, ", "please help: ", "hi! ", "good morning, "]


def write(path, asks, count, seed):
    """Write a CSV with that many requests of each intent."""
    dice, rows = random.Random(seed), []
    for intent, texts in asks.items():
        for _ in range(count):
            text = dice.choice(texts).format(thing=dice.choice(THINGS), secret=dice.choice(SECRETS))
            rows.append((dice.choice(GREETINGS) + text, intent))
    dice.shuffle(rows)
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "intent"), *rows])


every_ask = {intent: [*texts, *LACKING.get(intent, [])] for intent, texts in ASKS.items()}
write("train.csv", ASKS, 60, seed=1)
write("dev.csv", ASKS, 20, seed=2)
write("test.csv", every_ask, 40, seed=3)

# %% [markdown]
# `init` finds `dev.csv` and `test.csv` beside `train.csv`.

# %%
pipeline = seqpipe.Pipeline.init("train.csv", "requests.yaml")
before = pipeline.run(device="cpu")
before

# %% [markdown]
# ## Which records, and which labels?
#
# The errors, the worst first, and the labels that are taken for each other:

# %%
before.errors()

# %%
before.confusion()

# %% [markdown]
# Both are lists of dicts; with pandas installed, `before.errors().to_pandas()` is a data frame. The report has these
# tables, the errors drawn on their texts, curves, calibration and more. It is also a file in the folder of the run.

# %%
before.report()

# %% [markdown]
# ## Change the data, and compare
#
# The errors have something in common: nobody asks to delete an account in `train.csv`. Add such records and train
# again, under a name of its own:

# %%
write("train.csv", every_ask, 60, seed=4)
after = seqpipe.Pipeline("requests.yaml", {"name": "more-asks"}).run(device="cpu")
print("errors:", len(before.errors()), "before,", len(after.errors()), "after")
after

# %%
seqpipe.show(after.bundle.load("cpu"), "how do i delete the account of my phone")
