"""`seqpipe evaluate`: the scores of a run or a bundle."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

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
from seqpipe.errors import UsageError


def evaluate(
    target: Annotated[Path, typer.Argument(metavar="RUN|BUNDLE", help="Folder of a run or of a bundle.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="A data file to use instead of the run's test sets.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Also compute the scores on raw text, as in deployment.")] = False,
    by: Annotated[
        str | None, typer.Option("--by", metavar="FIELD", help="Also print the scores for each value of a field.")
    ] = None,
    errors: Annotated[
        Path | None,
        typer.Option("--errors", metavar="FILE", help="Write the records with wrong answers to this file, as JSONL."),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option("--pairs", metavar="FILE", help="Minimal pairs or alternatives to score a language model on."),
    ] = None,
    normalize: Annotated[
        Literal["none", "token", "character"],
        typer.Option("--normalize", metavar="UNIT", help="With --pairs: none, or divide by token or character counts."),
    ] = "none",
    masking: Annotated[
        Literal["token", "word"],
        typer.Option("--masking", metavar="UNIT", help="With --pairs: token, or word, which masks all of it."),
    ] = "token",
    perturb: Annotated[
        str | None,
        typer.Option("--perturb", metavar="NAMES", help="Score perturbed texts: typos,case,width,emoji,blanks."),
    ] = None,
    swap: Annotated[
        Path | None,
        typer.Option("--swap", metavar="FILE", help="Pairs of words (a tab between them): count answers that change."),
    ] = None,
    options: DecodeOptions = None,
    beams: Annotated[int | None, typer.Option("--beams", help="Short for --option beams=N.")] = None,
    plugins: PluginFiles = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compute the scores of a run (PyTorch) or a bundle (onnxruntime) on its test sets or on a file."""
    from seqpipe.pipeline.scoring import open_target, score_pairs, score_perturbed, score_target

    console = make_console(quiet)
    items = [*(options or [])] if beams is None else [f"beams={beams}", *(options or [])]
    if pairs:
        if data or raw or items:
            raise UsageError(
                "--pairs scores the texts of its file and decodes nothing; omit --data, --raw and --option"
            )
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
        parse, files = partial(parse_decode_options, items, {}), plugins or ()
        result = score_target(
            target, console, data=data, raw=raw, by=by, errors=errors, device=device, options=parse, plugins=files
        )
    if errors:
        console.say(f"\nthe mistakes are listed in {errors}")
    print_json(result, as_json)
