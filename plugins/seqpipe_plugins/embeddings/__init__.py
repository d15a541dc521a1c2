"""Embeddings: features to x (B, T, D); one file per component."""
