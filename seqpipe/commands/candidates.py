"""`seqpipe candidates`: replace the candidate texts of a bundle, or the texts that it may write, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from seqpipe.commands.options import BundlePath, PluginFiles, Quiet, make_console
from seqpipe.errors import EnvError


def candidates(
    bundle: BundlePath,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The candidates, in the format of the training data.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the new bundle; default: BUNDLE is replaced.")
    ] = None,
    plugins: PluginFiles = None,
    quiet: Quiet = False,
) -> None:
    """Replace the candidate texts of a retrieval bundle, or the texts that a bundle may generate, without training.

    Needs no PyTorch.
    """
    try:
        from seqpipe.export.candidates import replace_candidates
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise EnvError("this command needs the package onnx, which is not installed: pip install onnx") from None
    from seqpipe.config.plugins import Plugins
    from seqpipe.runs.lock import lock_around
    from seqpipe.runtime.bundle import read_manifest, reader_from, refuse_other
    from seqpipe.runtime.decode_options import ALLOWED

    path = output or bundle
    refuse_other(path)
    manifest, _ = read_manifest(bundle)
    reader = reader_from(manifest.reader, Plugins(files=plugins or ()))
    records = reader.read(file)  # lazily, after the bundle is checked
    with lock_around(path):
        model = replace_candidates(bundle, records, path)
    candidates = model.predictor.kind.parts[""].candidates
    texts: Any = candidates.texts if candidates else model.manifest.options[ALLOWED]["default"]
    noun = ("candidate" if candidates else "allowed text") + ("" if len(texts) == 1 else "s")
    make_console(quiet).say(f"{path}: {len(texts):,} {noun}\n\nnext: seqpipe predict {path}")
