"""Tokenizers: a file for each `use`."""
