"""What stands where in the folder of a run."""

STATE, YAML, SCORES, LEARNED = "run.json", "pipeline.yaml", "metrics.json", "learned.json"
LOCK = ".lock"  # names the process that writes into the run, or was the last to
CHECKPOINTS, LAST, BEST = "checkpoints", "last.ckpt", "best-*.safetensors"
TOKENS = "tokens"  # files of tokens that language models learn from
BUNDLE = "bundle.json"  # in the folder of a bundle
# At the top of a run, written by who holds its lock.
RUN_FILES = (STATE, YAML, SCORES, LEARNED, "*tokenizer*.json", "bundle", "vectors.*")
