"""`seqpipe compare` and `seqpipe runs`: several runs beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqpipe.commands.options import Device, Json, print_json
from seqpipe.console import printable, text_table

if TYPE_CHECKING:
    from seqpipe.report.compare import SetComparison


def compare(
    targets: Annotated[list[Path], typer.Argument(metavar="A B [C]...", help="Folders of runs or of bundles.")],
    data: Annotated[Path | None, typer.Option("--data", help="A data file to answer.")] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="FIELD", help="Also compare each value of a field.")] = None,
    examples: Annotated[int, typer.Option("--examples", min=0, help="Changed answers to show, of each sort.")] = 3,
    resamples: Annotated[int, typer.Option("--resamples", min=100, help="Samples for intervals and p.")] = 1000,
    fail_if_worse: Annotated[
        float | None,
        typer.Option(metavar="POINTS", help="End with 1 if a main score is worse than A's by more points."),
    ] = None,
    speed: Annotated[bool, typer.Option("--speed/--no-speed", help="Measure the speed of bundles.")] = True,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Compare runs or bundles with the first: is one better, by how much, is it chance, what changed, at what cost."""
    from seqpipe.pipeline.runs import compare as compare_targets

    options: dict[str, Any] = {"by": by, "examples": examples, "resamples": resamples}
    result = compare_targets(*targets, data=data, speed=speed, device=device, **options)
    print_json(asdict(result), as_json)
    if not as_json:
        names = [str(target) for target in targets]
        sections = [line for test in result.tests for line in _lines(test)]
        if result.settings:
            rows = [[row["key"], *(str(row[name]) for name in names)] for row in result.settings]
            sections += ["\nsettings", *text_table([["", *names], *rows])]
        if result.cost:
            table = [["", *(key.replace("_", " ") for key in [*result.cost[0]][1:])]]
            table += [[row.pop("target"), *(f"{value:,.0f}" for value in row.values())] for row in result.cost]
            sections += ["\ncost", *text_table(table, numbers=True)]
        typer.echo(printable("\n".join(sections)))
    if fail_if_worse is not None and any(test.scores[0].gain < -fail_if_worse for test in result.tests):
        raise typer.Exit(1)


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of runs.")] = Path("runs"),
    sort: Annotated[str, typer.Option("--sort", help="A column, such as score or when.")] = "name",
    as_json: Json = False,
) -> None:
    """List the runs of a folder: data, model, scores, size, training time, also of unfinished and damaged ones."""
    from seqpipe.pipeline.runs import COLUMNS
    from seqpipe.pipeline.runs import runs as list_runs

    rows, shown = list_runs(folder, sort=sort), [key for key in COLUMNS if key != "scores"]
    print_json(rows, as_json)
    if not as_json:
        table = [[key.replace("_", " ") for key in shown], *([_cell(key, row[key]) for key in shown] for row in rows)]
        typer.echo(printable("\n".join(text_table(table) if rows else [f"{folder}: no runs"])))


def _cell(key: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}" if key == "seconds" else f"{value:.4f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _lines(test: SetComparison) -> Iterator[str]:
    yield f"{test.data}: {test.records:,} records, {test.resamples:,} resamples\n{test.sentence}"
    for title, rows in (("", test.scores), ("by label", test.labels), ("by group", test.groups)):
        table = [[title, test.first, test.second, "difference", "from", "to", "p"]]
        for row in rows:
            values = (row.difference, row.low, row.high)
            scores = [row.format(row.first), row.format(row.second), *(row.format(value, "+") for value in values)]
            table.append([row.name, *scores, "-" if row.p is None else f"{row.p:.3f}"])
        if rows:
            yield from ("", *text_table(table, numbers=True))
    yield "\nchanged answers: " + ", ".join(f"{count:,} {kind}" for kind, count in test.changes.items())
    for example in test.examples:
        yield f"  {example['change']}: {shorten(example['text'], 160)}"
        answers = dict(zip((test.first, test.second), example["answers"], strict=True))
        for name, answer in (answers | {"expected": str(example["expected"])}).items():
            yield f"    {name}: {shorten(answer, 160)}"
