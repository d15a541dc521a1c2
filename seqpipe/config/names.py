"""Names that pass between stages, each with its shape and dtype where the frame gives it; a feature states its own."""

from __future__ import annotations

from collections.abc import Mapping

ROWLESS = ("table", "table_bias")  # names of what has no row for each text
SHAPES: Mapping[str, tuple[str, str]] = {
    "ids": ("(B, T)", "int64"),
    "mask": ("(B, T)", "bool"),
    "x": ("(B, T, D)", "float32"),
    "target_ids": ("(B, N)", "int64"),
    "target_mask": ("(B, N)", "bool"),
    "tags": ("(B, T)", "int64"),
    "label": ("(B,)", "int64"),
    "scores": ("(B, T)", "float32"),
    "label.scores": ("(B, L)", "float32"),
    "labels.label": ("(B, L)", "float32"),
    "labels.labels": ("(B, L)", "int64"),
    "labels.scores": ("(B, L)", "float32"),
    "score": ("(B,)", "float32"),
    "vector": ("(B, D)", "float32"),
    "text.scores": ("(B, K)", "float32"),
    "pointers": ("(B, K, N)", "int64"),
    "loss.pointers": ("(B, N)", "int64"),
    "pointers_mask": ("(B, N)", "bool"),
    "pointers.scores": ("(B, K)", "float32"),
    "start": ("(B,)", "int64"),
    "end": ("(B,)", "int64"),
    "starts": ("(B, K)", "int64"),
    "ends": ("(B, K)", "int64"),
    "span.scores": ("(B, K)", "float32"),
    "opens": ("(B, T)", "float32"),
    "closes": ("(B, T)", "float32"),
    "paths": ("(B, K, T)", "int64"),
    "path_scores": ("(B, K)", "float32"),
    "tokens": ("(B, K, N)", "int64"),
    "incremental": ("the stages", "by token"),
    "dim": ("", "int"),
    "vocabulary": ("V", "text"),
    "target_vocabulary": ("V", "text"),
    "labels": ("L", "text"),
    "sizes": ("", "name: int"),
    "sources": ("a list", "of names"),
    "sources()": ("a list", "int"),
}
