"""The results of a measurement as tables for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seqpipe.commands.bench.latency import HEADINGS
from seqpipe.console import printable, text_table

_PERCENTILES = ("p50_ms", "p90_ms", "p99_ms", "max_ms")
_STARTS = {
    "python_s": "start Python",
    "load_s": "import seqpipe, open the bundle",
    "answer_s": "first answer",
    "total_s": "together",
}


def bundle_tables(result: Mapping[str, Any]) -> str:
    """What was measured of a bundle in this process."""
    tables = [
        _starts(result["start"]),
        [["one by one", "inputs/s", *HEADINGS], _row("", result["one_by_one"])],
        [["batch size", "inputs/s"], *([str(row["size"]), _rate(row)] for row in result["batches"])],
        [["threads", "inputs/s", *HEADINGS], *(_row(str(row["clients"]), row) for row in result["clients"])],
        *_stages(result["stages"]),
        *_memory(result),
    ]
    return "\n\n".join("\n".join(text_table(table, numbers=True)) for table in tables)


def server_tables(result: Mapping[str, Any]) -> str:
    """What was measured of a server."""
    tables = []
    for key, heading in (("closed_loop", "clients"), ("open_loop", "arrivals/s")):
        if rows := result[key]:
            head = [heading, "answers/s", "in time/s", *HEADINGS, "requests"]
            tables.append([head, *(row for load in rows for row in _load(load))])
    return "\n\n".join("\n".join(text_table(table, numbers=True)) for table in tables)


def _starts(start: Mapping[str, Any]) -> list[list[str]]:
    rows = [[name, f"{start[key]:.3f}"] for key, name in _STARTS.items()]
    return [[f"cold start (median of {start['processes']})", "s"], *rows]


def _row(name: str, row: Mapping[str, Any]) -> list[str]:
    return [name, _rate(row), *_percentiles(row)]


def _rate(row: Mapping[str, Any]) -> str:
    return f"{row['per_second']:,.1f}"


def _percentiles(row: Mapping[str, Any]) -> list[str]:
    return [f"{row[key]:,.2f}" for key in _PERCENTILES]


def _stages(stages: Mapping[str, Mapping[str, float]]) -> Iterator[list[list[str]]]:
    if stages:
        columns = list(stages.values())
        names = {"features_ms": "features", "run_ms": "run of the graph", "answer_ms": "answer"}
        rows = [[name, *(f"{column[key]:.3f}" for column in columns)] for key, name in names.items()]
        yield [["ms an input", *(key.replace("_", " ") for key in stages)], *rows]


def _memory(result: Mapping[str, Any]) -> Iterator[list[list[str]]]:
    memories = {"after the first answer": result["start"]["memory"], "after all measurements": result["memory"]}
    rows = [[name, f"{m['resident_mib']:,.0f}", f"{m['peak_mib']:,.0f}"] for name, m in memories.items() if m]
    if rows:
        yield [["memory", "resident MiB", "peak MiB"], *rows]


def _load(load: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """The answers of one load, a row each for other status codes, and for what has no answer."""
    name = f"{load.get('clients', load.get('rate')):,g}"
    codes = load["codes"]
    for code, latency in codes.items():
        if code == "200":
            yield [name, _rate(load), f"{load['in_time_per_second']:,.1f}", *_percentiles(latency), _count(latency)]
        else:
            yield [f"  status {code}", "", "", *_percentiles(latency), _count(latency)]
    for reason, count in load["failures"].items():
        yield [f"  {printable(reason)}", "", "", "", "", "", "", f"{count:,}"]


def _count(latency: Mapping[str, Any]) -> str:
    return f"{latency['count']:,}"
