"""Names that pass between stages, with the shapes and dtypes of those that seqpipe itself provides."""

from __future__ import annotations

from collections.abc import Mapping

SOURCE_STATE = "source_state"  # of another source, for encoders that start from it
ROWLESS = ("table", "table_bias")  # names of what has no row for each text
SHAPES: Mapping[str, tuple[str, str]] = {
    "ids": ("(B, T)", "int64"),
    "mask": ("(B, T)", "bool"),
    "x": ("(B, T, D)", "float32"),
    SOURCE_STATE: ("(B, D)", "float32"),
    "incremental": ("the stages", "by token"),
    "dim": ("", "int"),
    "vocabulary": ("V", "text"),
    "target_vocabulary": ("V", "text"),
    "labels": ("L", "text"),
    "sizes": ("", "name: int"),
    "sources": ("a list", "of names"),
    "sources()": ("a list", "int"),
}
