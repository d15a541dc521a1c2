"""Scores as people read them: one number, and an aligned table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqpipe.answers.types import Metric
from seqpipe.console import text_table

PLAIN = Metric(percent=False)  # of a score that nothing is known of


def table(scores: Mapping[str, Any], metrics: Mapping[str, Metric]) -> str:
    """The scores as aligned plain text: a row a label, then one over all; fractions in per cent.

    Of several heads each has a table of its own under its name; what is said of all of them stands last.

    Args:
        scores: As `seqpipe.runtime.evaluate` gives them.
        metrics: What is known of each score, by name.
    """
    heads = {name: part for name, part in scores.items() if isinstance(part, Mapping) and name != "labels"}
    if heads:
        over_all = {name: value for name, value in scores.items() if name not in heads}
        tables = [f"{name}\n{table(part, metrics)}" for name, part in heads.items()]
        return "\n\n".join([*tables, table(over_all, metrics)])
    rows = [*scores.get("labels", {}).items(), ("overall", {k: v for k, v in scores.items() if k != "labels"})]
    columns = list(dict.fromkeys(column for _, row in reversed(rows) for column in row))
    lines = [["", *(column.replace("_", " ") for column in columns)]]
    lines += [[label, *(_cell(column, row.get(column), metrics) for column in columns)] for label, row in rows]
    return "\n".join(text_table(lines, numbers=True))


def metric_of(name: str, metrics: Mapping[str, Metric]) -> Metric:
    """What is known of a score; its name may have a head's name in front."""
    return metrics.get(name.rpartition(".")[2], PLAIN)


def shown(name: str, value: float, metrics: Mapping[str, Metric]) -> str:
    """A score as a person reads it."""
    return f"{100 * value:.2f}" if metric_of(name, metrics).percent else f"{value:.4g}"


def _cell(column: str, value: object, metrics: Mapping[str, Metric]) -> str:
    if isinstance(value, float):
        return shown(column, value, metrics)
    return "" if value is None else str(value)
