"""`seqpipe evaluate`, `merge`, `minimal-pairs`, `robustness`, `report`, `compare` and `runs`: scores."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seqpipe.batch.job import Shard
from seqpipe.commands.options import (
    AnswerOptions,
    BundlePath,
    DecodeOptions,
    Device,
    Json,
    PluginFiles,
    Quiet,
    ResultOptions,
    make_console,
    parse_decode_options,
    print_json,
    with_options,
)
from seqpipe.console import printable, text_table, text_width
from seqpipe.errors import UsageError

if TYPE_CHECKING:
    from seqpipe.evaluation.significance import SetComparison
    from seqpipe.runs.scoring import Opened

Target = Annotated[Path, typer.Argument(metavar="RUN|BUNDLE", help="Folder of a run or of a bundle.")]
TestData = Annotated[Path | None, typer.Option("--data", help="A data file instead of the run's test sets.")]
Errors = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the records with wrong answers to this file, as JSONL.")
]
Perturb = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Score perturbed texts: typos,case,width,emoji,blanks.")
]
Swap = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Pairs of words, a tab between them: count changed answers.")
]
By = Annotated[str | None, typer.Option("--by", metavar="FIELD", help="Also show the scores by value of a field.")]


@dataclass(frozen=True, kw_only=True)
class ScoringOptions(AnswerOptions):
    """The options of commands that score a run or a bundle."""

    plugins: PluginFiles = None

    def open(self, target: Path, data: Path | None) -> Opened:
        """Open a run or bundle to score it on its test sets or on `data`."""
        from seqpipe.runs.scoring import open_target

        return open_target(target, self.device, data, self.console, self.plugins or ())


@with_options(ScoringOptions)
def evaluate(
    scoring: ScoringOptions,
    target: Target,
    data: TestData = None,
    raw: Annotated[bool, typer.Option("--raw", help="Also compute the scores on raw text, as in deployment.")] = False,
    by: By = None,
    errors: Errors = None,
    shard: Annotated[
        Shard | None,
        typer.Option(parser=Shard.parse, metavar="I/N", help="Only answer the I-th of N shares, for merge."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="With --shard: folder of the answers.")
    ] = None,
    options: DecodeOptions = None,
    beams: Annotated[int | None, typer.Option(help="Short for --option beams=N.")] = None,
) -> None:
    """Compute the scores of a run (PyTorch) or a bundle (onnxruntime) on its test sets or on a file."""
    from seqpipe.runs.scoring import answer_shard, score_target
    from seqpipe.runtime.decode_options import BEAMS

    if bool(shard) != bool(output):
        raise UsageError("--shard writes its answers to a folder: name both, such as --shard 3/16 --output answers")
    if shard and (by or errors):
        raise UsageError("--shard only answers; give --by and --errors to seqpipe merge")
    opened, parse = scoring.open(target, data), partial(parse_decode_options, options or (), {BEAMS: beams})
    if shard and output:
        answer_shard(target, opened, scoring.console, shard, output, raw=raw, options=parse)
    else:
        scoring.print(score_target(opened, scoring.console, raw=raw, by=by, errors=errors, options=parse))


@with_options(ResultOptions)
def merge(
    result: ResultOptions,
    bundle: BundlePath,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Answers of seqpipe evaluate --shard I/N.")],
    by: By = None,
    errors: Errors = None,
    plugins: PluginFiles = None,
) -> None:
    """Compute the scores of the answers of all shards: those of seqpipe evaluate in one run."""
    from seqpipe.runs.scoring import score_shards

    result.print(score_shards(bundle, folder, result.console, by=by, errors=errors, plugins=plugins or ()))


@with_options(ScoringOptions)
def minimal_pairs(
    scoring: ScoringOptions,
    target: Target,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Pairs or alternatives, one of them right.")],
    normalize: Annotated[
        Literal["none", "token", "character"],
        typer.Option(metavar="UNIT", help="none, or divide by token or character counts."),
    ] = "none",
    masking: Annotated[
        Literal["token", "word"], typer.Option(metavar="UNIT", help="token, or word, which masks all of it.")
    ] = "token",
    by: By = None,
    errors: Errors = None,
) -> None:
    """Count the minimal pairs of which a language model prefers the right text."""
    from seqpipe.runs.scoring import score_pairs

    predictor, console = scoring.open(target, file).predictor, scoring.console
    scoring.print(score_pairs(predictor, console, file, normalize=normalize, masking=masking, by=by, errors=errors))


@with_options(ScoringOptions)
def robustness(
    scoring: ScoringOptions, target: Target, data: TestData = None, perturb: Perturb = None, swap: Swap = None
) -> None:
    """Compute the scores on perturbed texts, by default of all kinds; count the answers that swapped words change."""
    from seqpipe.evaluation.scores import PERTURBATIONS
    from seqpipe.runs.scoring import score_perturbed

    names = (perturb or "").replace(",", " ").split()
    if not (names or swap):
        names = [*PERTURBATIONS]
    scoring.print(score_perturbed(scoring.open(target, data), scoring.console, names, swap))


def report(
    target: Target,
    data: Annotated[Path | None, typer.Option(help="Data file with references, for a bundle.")] = None,
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
    more = output, by, names, pairs
    written = Bundle(target).report(data, *more) if data else Run(target).report(*more)
    make_console(quiet).say(f"wrote {written.path}")


def compare(
    targets: Annotated[list[Path], typer.Argument(metavar="A B [C]...", help="Folders of runs or of bundles.")],
    data: Annotated[Path | None, typer.Option(help="A data file to answer.")] = None,
    by: By = None,
    examples: Annotated[int, typer.Option(min=0, help="Changed answers to show, of each sort.")] = 3,
    resamples: Annotated[int, typer.Option(min=100, help="Samples for intervals and p.")] = 1000,
    fail_if_worse: Annotated[
        float | None, typer.Option(metavar="POINTS", help="End with 1 if a main score is more points below A's.")
    ] = None,
    speed: Annotated[bool, typer.Option("--speed/--no-speed", help="Measure the speed of bundles.")] = True,
    plugins: PluginFiles = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Compare runs or bundles with the first: is one better, by how much, is it chance, what changed, at what cost."""
    from seqpipe.runs.compare import compare as compare_targets

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
    sort: Annotated[str, typer.Option(help="A column, such as score or when.")] = "name",
    as_json: Json = False,
) -> None:
    """List the runs of a folder: data, model, scores, size, training time, also of unfinished and damaged ones."""
    from seqpipe.runs.table import RUN_KEYS, list_runs

    rows = list_runs(folder, sort=sort)
    print_json(rows, as_json)
    if not as_json:
        shown = [key for key in RUN_KEYS if any(row[key] is not None for row in rows)]
        cells = [[_cell(key, row[key], row["percent"]) for key in shown] for row in rows]
        lines = text_table([[key.replace("_", " ") for key in shown], *cells])
        if sys.stdout.isatty() and max(map(text_width, lines)) > shutil.get_terminal_size().columns:
            blocks = [[(key.replace("_", " "), cell) for key, cell in zip(shown, row, strict=True)] for row in cells]
            lines = [line for block in blocks for line in ("", *text_table([pair for pair in block if pair[1]]))]
        typer.echo(printable("\n".join(lines if rows else [f"{folder}: no runs"])))


def _cell(key: str, value: Any, is_fraction: bool | None) -> str:
    if isinstance(value, float):
        return f"{value:.1f}" if key == "seconds" else f"{100 * value:.2f}" if is_fraction else f"{value:.4g}"
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
