"""Embeddings: features to x (B, T, D); one file a component."""
