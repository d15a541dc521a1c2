"""`seqpipe evaluate`, `report`, `compare` and `runs`: the scores of runs and bundles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seqpipe.commands.options import (
    DecodeOptions,
    Device,
    Json,
    PluginFiles,
    Quiet,
    make_console,
    parse_decode_options,
    print_json,
)
from seqpipe.console import printable, text_table
from seqpipe.errors import UsageError

if TYPE_CHECKING:
    from seqpipe.evaluation.significance import SetComparison

Perturb = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Score perturbed texts: typos,case,width,emoji,blanks.")
]
Swap = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Pairs of words, a tab between them: count changed answers.")
]
By = Annotated[str | None, typer.Option("--by", metavar="FIELD", help="Also show the scores by value of a field.")]


def evaluate(
    target: Annotated[Path, typer.Argument(metavar="RUN|BUNDLE", help="Folder of a run or of a bundle.")],
    data: Annotated[Path | None, typer.Option("--data", help="A data file instead of the run's test sets.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Also compute the scores on raw text, as in deployment.")] = False,
    by: By = None,
    errors: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the records with wrong answers to this file, as JSONL.")
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Minimal pairs or alternatives to score a language model on.")
    ] = None,
    normalize: Annotated[
        Literal["none", "token", "character"],
        typer.Option("--normalize", metavar="UNIT", help="With --pairs: none, or divide by token or character counts."),
    ] = "none",
    masking: Annotated[
        Literal["token", "word"],
        typer.Option("--masking", metavar="UNIT", help="With --pairs: token, or word, which masks all of it."),
    ] = "token",
    perturb: Perturb = None,
    swap: Swap = None,
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="I/N", help="Answer the I-th of N shares, for --merge.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the answers of shards.")
    ] = None,
    merge: Annotated[
        Path | None, typer.Option("--merge", metavar="FOLDER", help="Score the answers of all shards in a folder.")
    ] = None,
    options: DecodeOptions = None,
    beams: Annotated[int | None, typer.Option("--beams", help="Short for --option beams=N.")] = None,
    plugins: PluginFiles = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compute the scores of a run (PyTorch) or a bundle (onnxruntime) on its test sets or on a file."""
    from seqpipe.batch.shards import Shard
    from seqpipe.runs.scoring import answer_shard, open_target, score_pairs, score_perturbed, score_shards, score_target

    console = make_console(quiet)
    items = [*(options or [])] if beams is None else [f"beams={beams}", *(options or [])]
    parse, files = partial(parse_decode_options, items, {}), plugins or ()
    if (shard is None) != (output is None):
        raise UsageError("--shard writes its answers to a folder: name both, such as --shard 3/16 --output answers")
    if (shard or merge) and (pairs or perturb or swap or (shard and (merge or by or errors))):
        raise UsageError("--shard only answers, and --merge scores; give --by and --errors with --merge")
    if shard and output:
        share = Shard.parse(shard)
        answer_shard(target, console, share, output, data=data, raw=raw, device=device, options=parse, plugins=files)
        return
    if merge:
        if data or raw or items:
            raise UsageError("--merge scores answers that exist; give --data, --raw and --option with --shard")
        result = score_shards(target, merge, console, by=by, errors=errors, plugins=files)
    elif pairs:
        if data or raw or items:
            raise UsageError("--pairs scores the texts of its file and decodes nothing; omit --data, --raw, --option")
        result = score_pairs(
            target, console, pairs=pairs, normalize=normalize, masking=masking, by=by, errors=errors, device=device
        )
    elif perturb or swap:
        if raw or by or errors or items:
            raise UsageError("--perturb and --swap decode as usual; omit --raw, --by, --errors and --option")
        opened = open_target(target, device, data, console, plugins or ())
        result = score_perturbed(opened, console, (perturb or "").replace(",", " ").split(), swap)
    elif (normalize, masking) != ("none", "token"):
        raise UsageError("--normalize and --masking need --pairs; add a file of pairs")
    else:
        result = score_target(
            target, console, data=data, raw=raw, by=by, errors=errors, device=device, options=parse, plugins=files
        )
    if errors:
        console.say(f"\nthe mistakes are listed in {errors}")
    print_json(result, as_json)


def report(
    target: Annotated[Path, typer.Argument(metavar="RUN|BUNDLE", help="Folder of a run or of a bundle.")],
    data: Annotated[Path | None, typer.Option("--data", help="Data file with references, for a bundle.")] = None,
    by: By = None,
    perturb: Perturb = None,
    swap: Swap = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="HTML file; default: RUN/report.html.")] = None,
    quiet: Quiet = False,
) -> None:
    """Write a page about a run: its training, scores, confusions, worst errors, data and bundle."""
    from seqpipe.api.bundle import Bundle
    from seqpipe.api.run import Run
    from seqpipe.config.run_layout import BUNDLE
    from seqpipe.evaluation.scores import read_pairs

    is_bundle = (target / BUNDLE).exists()
    if is_bundle != (data is not None):
        fix = "name its data file with --data" if is_bundle else "omit --data, or name the bundle of the run"
        raise UsageError(f"{target} is {'a bundle' if is_bundle else 'a run'}: {fix}")
    names, pairs = (perturb or "").replace(",", " ").split(), read_pairs(swap) if swap else ()
    if data:
        written = Bundle(target).report(data, output, by, names, pairs)
    else:
        written = Run(target).report(output, by, names, pairs)
    make_console(quiet).say(f"wrote {written.path}")


def compare(
    targets: Annotated[list[Path], typer.Argument(metavar="A B [C]...", help="Folders of runs or of bundles.")],
    data: Annotated[Path | None, typer.Option("--data", help="A data file to answer.")] = None,
    by: By = None,
    examples: Annotated[int, typer.Option("--examples", min=0, help="Changed answers to show, of each sort.")] = 3,
    resamples: Annotated[int, typer.Option("--resamples", min=100, help="Samples for intervals and p.")] = 1000,
    fail_if_worse: Annotated[
        float | None, typer.Option(metavar="POINTS", help="End with 1 if a main score is more points below A's.")
    ] = None,
    speed: Annotated[bool, typer.Option("--speed/--no-speed", help="Measure the speed of bundles.")] = True,
    plugins: PluginFiles = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Compare runs or bundles with the first: is one better, by how much, is it chance, what changed, at what cost."""
    from seqpipe.api.run import compare as compare_targets

    samples: dict[str, int] = {"examples": examples, "resamples": resamples}
    result = compare_targets(*targets, data=data, by=by, speed=speed, device=device, plugins=plugins or (), **samples)
    print_json(asdict(result), as_json)
    if not as_json:
        sections = [line for test in result.tests for line in _lines(test)]
        if result.settings:
            table = [["", *map(str, targets)], *([*map(str, row.values())] for row in result.settings)]
            sections += ["\nsettings", *text_table(table)]
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
    from seqpipe.runs.table import COLUMNS, list_runs

    rows = list_runs(folder, sort=sort)
    print_json(rows, as_json)
    if not as_json:
        table = [[key.replace("_", " ") for key in COLUMNS]]
        table += [[_cell(key, row[key]) for key in COLUMNS] for row in rows]
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
    if names := [row.name for row in test.scores if row.p is None]:
        yield f"not resampled, since no mean over the records: {', '.join(names)}"
    if test.changes:
        yield "\nchanged answers: " + ", ".join(f"{count:,} {kind}" for kind, count in test.changes.items())
    for example in test.examples:
        yield f"  {example['change']}: {shorten(example['text'], 160)}"
        answers = dict(zip((test.first, test.second), example["answers"], strict=True))
        for name, answer in (answers | {"expected": str(example["expected"])}).items():
            yield f"    {name}: {shorten(answer, 160)}"
