"""`seqpipe run`, `train`, `export` and `features`: from a YAML to a run and a bundle, and what runs leave behind."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from seqpipe.commands.help import Command
from seqpipe.commands.options import (
    Json,
    PluginFiles,
    Quiet,
    RunFolder,
    TrainingOptions,
    join_devices,
    make_console,
    print_json,
    with_options,
)
from seqpipe.errors import UsageError


@with_options(TrainingOptions)
def run(
    training: TrainingOptions,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Train with seeds 1 to N; report mean and standard deviation.")
    ] = None,
    folds: Annotated[
        int | None, typer.Option(min=2, help="Cross-validate: train without each of N parts of the data, test on it.")
    ] = None,
    final: Annotated[bool, typer.Option("--final", help="After --folds, train on all data too.")] = False,
    more: Annotated[int | None, typer.Option(min=1, help="Train the finished run for N further epochs.")] = None,
    data_add: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Continue with more data, as a new run (NAME-2, or name=)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check, train, evaluate, export, verify, and show answers. Resumes an interrupted run."""
    several = {"--seeds": seeds, "--folds": folds, "--more": more, "--data-add": data_add}
    first, *others = [option for option, value in several.items() if value] or [""]
    if others:
        reason = "the deviation would be that of both" if first == "--seeds" else "each is a training of its own"
        raise UsageError(f"{first} with {others[0]}: {reason}; use one at a time, such as --folds 5 with --seed 2")
    if final and not folds:
        raise UsageError("--final trains on all data after --folds; add --folds, or omit it")
    is_first = join_devices(training.devices, training.device)
    console = training.make_console(silent=not is_first)
    pipeline = training.load(console, training.seed)
    options: dict[str, Any] = {"device": training.device, "fresh": training.fresh, "progress": console}
    if seeds:
        by_test = pipeline.run_seeds(seeds, **options)
        result: dict[str, Any] = {test: asdict(scores) for test, scores in by_test.items()}
    elif folds:
        crossed = pipeline.run_folds(folds, final=final, **options)
        result = {"run": str(crossed.folder), "folds": [*map(str, crossed.folds)], "scores": crossed.scores}
    else:
        finished = pipeline.run(more=more or 0, data_add=data_add, **options)
        result = {"run": str(finished.folder), "bundle": str(finished.bundle.path)}
        result |= {"training": finished.outcome, "scores": finished.scores}
    print_json(result, as_json and is_first)


@with_options(TrainingOptions)
def train(
    training: TrainingOptions,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted run; an error if there is none.")
    ] = False,
) -> None:
    """Train; start a run, or resume an interrupted one."""
    console = training.make_console(silent=not join_devices(training.devices, training.device))
    pipeline = training.load(console, training.seed)
    from seqpipe.config.run_layout import STATE
    from seqpipe.runs.results import RUNS

    folder = RUNS / pipeline.name
    if resume and not (folder / STATE).exists():
        raise UsageError(f"--resume: {folder} is not a run yet; omit --resume to start one")
    pipeline.train(device=training.device, fresh=training.fresh, progress=console)
    files = "".join(f" --plugin {shlex.quote(str(file))}" for file in training.plugins or [])
    console.say(f"\nnext: seqpipe evaluate {folder}{files}, then seqpipe export {folder}{files}")


def export(
    folder: RunFolder,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Bundle folder; default: RUN/bundle.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override of `export` or `card`, such as export.explain=true."),
    ] = None,
    plugins: PluginFiles = None,
    quiet: Quiet = False,
) -> None:
    """Export a trained run to a bundle, and compare its answers with PyTorch's."""
    from seqpipe.runs.full_run import export_run

    for item in sets or []:
        if not item.startswith(("export.", "card.")):
            raise UsageError(f"--set {item}: only keys of `export` and `card`, as export.opset, change after training")
    console = make_console(quiet)
    path = export_run(folder, output, sets or [], console, plugins or ())
    console.say(f"\nnext: seqpipe predict {path}")


features = typer.Typer(help="Mapped features of training data that are larger than memory.", rich_markup_mode=None)


@features.command(cls=Command)
def prune(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of runs.")] = Path("runs"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List them only.")] = False,
) -> None:
    """Remove the mapped features that no run of a folder uses; they are made again when a run needs them."""
    from seqpipe.runs.table import prune_features

    removed = prune_features(folder, dry_run=dry_run)
    for name, size in removed.items():
        typer.echo(f"{name}  {size / 1e6:,.1f} MB")
    verb = "would be removed" if dry_run else "removed"
    typer.echo(f"{len(removed):,} folders, {sum(removed.values()) / 1e6:,.1f} MB, {verb}")
