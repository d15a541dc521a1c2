"""Files in the folder of a run, and the format version of those that only seqpipe reads."""

from __future__ import annotations

from pathlib import Path

from seqpipe.errors import UsageError

STATE, YAML, SCORES_FILE, LEARNED = "run.json", "pipeline.yaml", "metrics.json", "learned.json"
OUTCOME = "training.json"  # the result of training
CONTEXTS = "intervals.json"  # the main scores of each set with their intervals (`ScoreContext`)
LOCK, LOCK_HOLDER = ".lock", ".lock-holder.json"  # the process that writes to the run, or the last that did
CHECKPOINTS, LAST, BEST = "checkpoints", "last.ckpt", "best-*.safetensors"
HISTORY = "metrics.jsonl"  # in the folder of checkpoints: a line of JSON for each epoch
TEACHER = "teacher.ckpt"  # the teacher's answers to the training texts
TOKENS_DIR = "tokens"  # token files for the training of language models
FEATURES = ".features"  # in the folder of all runs: mapped features of large data
MAPPED = "features.json"  # the names of those that a run reads
HELD_OUT_DIR = "data"  # the dev and test records that shares of the training data took
ANSWERS = "answers.jsonl"  # the records of the test sets with the answers to them: `set`, `record`, `answer`
SELF_TRAINING = "self-training"  # the trainings of `train.self_training`, until the best one is that of the run
PSEUDO_LABELS = "pseudo-labels.jsonl"  # answers that are training data: `confidence`, `record`
ROUNDS_FILE = "self-training.json"  # a row for each of these trainings
FACTS = "facts.json"  # about the data of each set, and warnings: `sets`, `warnings`
REPORT = "report.html"
BUNDLE = "bundle.json"  # in the folder of a bundle
# In the folder of a run, written by the process that holds its lock.
RUN_FILES: tuple[str, ...] = (STATE, YAML, OUTCOME, FACTS, SCORES_FILE, ANSWERS, REPORT, LEARNED, CONTEXTS)
RUN_FILES += (
    "*tokenizer*.json",
    LOCK_HOLDER,
    "bundle",
    MAPPED,
    HELD_OUT_DIR,
    TEACHER,
    "vectors.*",
    PSEUDO_LABELS,
    ROUNDS_FILE,
)
RUN_FORMAT = 2  # of learned.json and of checkpoints


def refuse_other_format(path: Path, version: int) -> None:
    """Raise UsageError for a file of a run that another version of seqpipe wrote in another format."""
    if version != RUN_FORMAT:
        age = "an older" if version < RUN_FORMAT else "a newer"
        fix = "train the pipeline again with `seqpipe run PIPELINE.yaml --fresh`"
        raise UsageError(f"{path}: has format {version}, of {age} seqpipe; this one reads format {RUN_FORMAT}: {fix}")
