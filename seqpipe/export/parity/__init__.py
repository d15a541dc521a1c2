"""Comparison of a bundle with the PyTorch pipeline: decisions, features, answers, metrics."""
