"""Scores of answers, errors, significance and minimal pairs; no PyTorch."""
