"""`seqpipe features`: the mapped features of large training data, which several runs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.help import Command

app = typer.Typer(help="Mapped features of training data that are larger than memory.", rich_markup_mode=None)


@app.command(cls=Command)
def prune(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of runs.")] = Path("runs"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List them only.")] = False,
) -> None:
    """Remove the mapped features that no run of a folder uses; they are made again when a run needs them."""
    from seqpipe.pipeline.runs import prune as prune_features

    removed = prune_features(folder, dry_run=dry_run)
    for name, size in removed.items():
        typer.echo(f"{name}  {size / 1e6:,.1f} MB")
    verb = "would be removed" if dry_run else "removed"
    typer.echo(f"{len(removed):,} folders, {sum(removed.values()) / 1e6:,.1f} MB, {verb}")
