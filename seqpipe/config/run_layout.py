"""Files in the folder of a run, and the format version of those that only seqpipe reads."""

from __future__ import annotations

from pathlib import Path

from seqpipe.errors import UsageError

STATE, YAML, SCORES, LEARNED = "run.json", "pipeline.yaml", "metrics.json", "learned.json"
OUTCOME = "training.json"  # how training ended
LOCK = ".lock"  # names the process that writes into the run, or was the last to
CHECKPOINTS, LAST, BEST = "checkpoints", "last.ckpt", "best-*.safetensors"
HISTORY = "metrics.jsonl"  # among the checkpoints: a line of JSON for each epoch
TOKENS = "tokens"  # files of tokens that language models learn from
PARTS = "data"  # dev and test records that shares of the training data took
BUNDLE = "bundle.json"  # in the folder of a bundle
# At the top of a run, written by who holds its lock.
RUN_FILES = (STATE, YAML, OUTCOME, SCORES, LEARNED, "*tokenizer*.json", "bundle", PARTS, "vectors.*")
FORM = 2  # of learned.json and of checkpoints


def refuse_other_form(path: Path, form: int) -> None:
    """Raise UsageError for a file of a run that another version of seqpipe wrote in another form."""
    if form != FORM:
        age = "an older" if form < FORM else "a newer"
        fix = "train the pipeline again with `seqpipe run PIPELINE.yaml --fresh`"
        raise UsageError(f"{path}: has form {form}, of {age} seqpipe; this one reads form {FORM}: {fix}")
