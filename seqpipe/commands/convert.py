"""`seqpipe convert`: a bundle of a fine-tuned checkpoint, without training and without a YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from seqpipe.commands.options import ResultOptions, with_options


@with_options(ResultOptions)
def convert(
    result: ResultOptions,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Checkpoint that save_pretrained or sentence-transformers wrote.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="BUNDLE", help="Folder of the bundle.")],
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Texts to compare with transformers and to make golden examples of: one a line, or a .jsonl file with "
            "the field text (for questions: question and context).",
        ),
    ] = None,
    aggregation: Annotated[
        Literal["simple", "first"],
        typer.Option(help="Spans of tokens (simple), or of words by the tag of their first token (first)."),
    ] = "simple",
    pooling: Annotated[
        Literal["mean", "cls"] | None,
        typer.Option(help="Make a sentence encoder with this pooling; default: what the folder states."),
    ] = None,
    no_answer: Annotated[
        bool, typer.Option("--no-answer", help="Of a checkpoint for questions that may have no answer, as in SQuAD 2.")
    ] = False,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Of a classifier of pairs: each input has the fields text and text_pair.")
    ] = False,
) -> None:
    """Make a bundle of a fine-tuned transformers checkpoint, compared with transformers. No training, no YAML."""
    from seqpipe.runs.convert import convert_checkpoint as make_bundle

    options = {"aggregation": aggregation, "pooling": pooling, "no_answer": no_answer, "pairs": pairs}
    model = make_bundle(folder, output, result.console, texts, **options)
    result.console.say(f"wrote {output}\nnext: seqpipe predict {output}")
    result.print({"bundle": str(output), "answer": model.manifest.answer["kind"], **model.manifest.parity})
