"""Answers for files, tables, shards and Ray; no PyTorch."""
