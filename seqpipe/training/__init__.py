"""Fit tokenizers and weights to records: datasets, the pipeline as one module, the training loop, checkpoints."""
