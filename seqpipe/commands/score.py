"""`seqpipe score`: the log-probability of given texts as answers to given inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import BundlePath, Device


def score(
    bundle: BundlePath,
    input: Annotated[
        Path | None, typer.Option("--input", "-i", metavar="FILE", help="Input file; default: standard input.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column or key of the text to score; default: as in training.")
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="NAME", help="Column or key of the input; repeated for a pair of texts."),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="text, jsonl, csv, tsv, json, parquet; default: by the ending.")
    ] = "auto",
    token_scores: Annotated[
        bool, typer.Option("--token-scores", help="Also print the log-probability of each token.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Score texts as answers to inputs, input and text with a tab between them; prints JSON lines. Needs no PyTorch."""
    from seqpipe import load
    from seqpipe.batch.files import score_file

    model = load(bundle, device)
    field = target or getattr(model.predictor.kind, "target", None) or "target"
    score_file(model, input, form, names or (), field, token_scores)
