"""What stands where in the folder of a run."""

STATE, YAML, SCORES, LEARNED = "run.json", "pipeline.yaml", "metrics.json", "learned.json"
CHECKPOINTS, LAST, BEST = "checkpoints", "last.ckpt", "best-*.safetensors"
TOKENS = "tokens"  # files of tokens that language models learn from
BUNDLE = "bundle.json"  # in the folder of a bundle
