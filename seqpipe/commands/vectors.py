"""`seqpipe vectors`: the word vectors of a run, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import Quiet, RunFolder, make_console


def vectors(
    folder: RunFolder,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file; default: RUN/vectors.vec, or .bin.")
    ] = None,
    binary: Annotated[bool, typer.Option("--binary", help="Write the binary format.")] = False,
    stage: Annotated[
        str | None, typer.Option("--stage", metavar="KEY", help="Which embedding, if there are several: embedding.1.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write the word vectors of a run to a file, in the format of word2vec."""
    from seqpipe.commands.word_vectors import write_vectors
    from seqpipe.pipeline.lock import lock_around
    from seqpipe.pipeline.run_folder import load_trained, open_run

    console = make_console(quiet)
    path = output or folder / ("vectors.bin" if binary else "vectors.vec")
    with lock_around(path):
        pipeline = load_trained(open_run(folder, console, need_data=False))
        count = write_vectors(pipeline, folder, path, binary, stage)
    console.say(f"{count:,} words -> {path}\n\nnext: embedding: {{use: vectors, path: {path}}}")
