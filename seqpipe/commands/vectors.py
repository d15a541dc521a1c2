"""`seqpipe vectors` and `distill-vectors`: word vectors of a run, or of a sentence encoder, in word2vec's format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqpipe.commands.options import Device, PluginFiles, Quiet, RunFolder, make_console
from seqpipe.errors import DataError, UsageError
from seqpipe.files import writing

if TYPE_CHECKING:
    import numpy as np

    from seqpipe.training.network import Network


def vectors(
    folder: RunFolder,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file; default: RUN/vectors.vec, or .bin.")
    ] = None,
    binary: Annotated[bool, typer.Option("--binary", help="Write the binary format.")] = False,
    stage: Annotated[
        str | None, typer.Option("--stage", metavar="KEY", help="Which embedding, if there are several: embedding.1.")
    ] = None,
    plugins: PluginFiles = None,
    quiet: Quiet = False,
) -> None:
    """Write the word vectors of a run to a file, in the format of word2vec."""
    from seqpipe.files import write
    from seqpipe.runs.lock import lock_around
    from seqpipe.runs.run_folder import load_trained, open_run

    console = make_console(quiet)
    path = output or folder / ("vectors.bin" if binary else "vectors.vec")
    with lock_around(path):
        network = load_trained(open_run(folder, console, need_data=False, plugins=plugins or ())).network
        key, table = _table(network, folder, stage)
        vocabulary = network.artifacts.vocabularies[network.source_of[key]]
        ids = [i for i, word in enumerate(vocabulary) if is_word(word)]
        write(path, word2vec_bytes([vocabulary[i] for i in ids], table[ids], binary))
    console.say(f"{len(ids):,} words -> {path}\n\nnext: embedding: {{use: vectors, path: {path}}}")


def distill_vectors(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="A folder written by `save_pretrained`, or a name on the hub.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Output file.")],
    vocabulary: Annotated[
        Path | None, typer.Option("--vocabulary", metavar="FILE", help="Words, one per line, the most frequent first.")
    ] = None,
    network: Annotated[
        Path | None,
        typer.Option("--pipeline", metavar="FILE", help="A pipeline's YAML: the words of its training data."),
    ] = None,
    dim: Annotated[int, typer.Option("--dim", min=1, help="Width of the vectors: their principal components.")] = 256,
    weighting: Annotated[
        Literal["zipf", "none"], typer.Option("--weighting", help="none, or zipf: frequent words get shorter vectors.")
    ] = "zipf",
    binary: Annotated[bool, typer.Option("--binary", help="Write the binary format.")] = False,
    plugins: PluginFiles = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Distill a sentence encoder to a vector for each token of its vocabulary, in a file in the format of word2vec."""
    from seqpipe.nn.pretrained import Distiller, principal_components, zipf_weights
    from seqpipe.runs.lock import lock_around
    from seqpipe.runs.train import resolve_device

    if vocabulary and network:
        raise UsageError("--vocabulary and --pipeline both select the words; use only one of them")
    console = make_console(quiet)
    with lock_around(output), writing(output) as temporary:
        words = _read_words(vocabulary) if vocabulary else _training_words(network, plugins or ()) if network else None
        distiller = Distiller(checkpoint, resolve_device(device))
        ids = distiller.tokens() if words is None else distiller.words(words)
        ids = {word: subwords for word, subwords in ids.items() if is_word(word)}
        if dim > (most := min(distiller.dim, len(ids) - 1)):
            problem = f"{len(ids):,} vectors of the encoder's width {distiller.dim} have at most {most}"
            raise UsageError(f"--dim {dim}: {problem} principal components; lower it")
        with console.progress("tokens", len(ids)) as tick:
            rows = distiller.encode(ids, tick)
        rows = principal_components(rows, dim)
        if weighting == "zipf":
            rows = rows * zipf_weights(len(ids))
        temporary.write_bytes(word2vec_bytes([*ids], rows, binary))
    if words is not None and len(words) > len(ids):
        unknown = f"{len(words) - len(ids):,} of {len(words):,} words"
        console.say(f"{unknown} are unknown to the tokenizer of {checkpoint} and have no vector")
    console.say(f"{len(ids):,} words, {dim} wide -> {output}")
    tokenizer = f"tokenizer: {{use: pretrained, checkpoint: {checkpoint}}}\n      " if words is None else ""
    console.say(f"\nnext: {tokenizer}embedding: {{use: static, path: {output}}}")


def _read_words(path: Path) -> list[str]:
    """Return the distinct words of a file with one word per line."""
    from seqpipe.batch.files import read_lines
    from seqpipe.runtime.predictor import raise_error

    words = []
    for line, where in read_lines(path):
        word = raise_error(line).strip()
        if len(word.split()) > 1:
            raise DataError(f"{where}: {word[:40]!r} contains white space; write one word per line")
        words.append(word)
    words = [word for word in dict.fromkeys(words) if word]
    if not words:
        raise DataError(f"{path}: has no words")
    return words


def _training_words(path: Path, plugins: Sequence[Path]) -> list[str]:
    """Return the vocabulary of a pipeline's tokenizers, fitted on its training data, without special tokens."""
    from seqpipe.config.loader import load_config
    from seqpipe.features.sources import tokenizers_of
    from seqpipe.features.splitting import splits_words
    from seqpipe.training.data_forms import data_form

    config = load_config(path, files=False, plugin_files=plugins)  # the file of vectors may not exist yet
    form = data_form(config)
    artifacts = form.fit(form.read(config.data.train))
    if any(map(splits_words, tokenizers_of(artifacts.featurizer).values())):
        fix = "omit --pipeline for vectors of the checkpoint's subwords, or set tokenizer: words"
        raise UsageError(f"--pipeline {path}: its tokenizer splits words into subwords; {fix}")
    vocabularies = artifacts.vocabularies.values()
    words = dict.fromkeys(word for vocabulary in vocabularies for word in vocabulary if is_word(word))
    if not words:
        raise DataError(f"{path}: its inputs are numbers; there are no words")
    return [*words]


def is_word(word: str) -> bool:
    """Return whether a file of vectors can contain this token: it is not special and has no white space."""
    from seqpipe.features.vocabulary import MASK, SPECIALS

    return word not in (*SPECIALS, MASK) and bool(word) and not any(character.isspace() for character in word)


def word2vec_bytes(words: Sequence[str], rows: np.ndarray, binary: bool) -> bytes:
    """Return a file with these words and their vectors, in word2vec's text or binary format.

    Both begin with a line with the number of words and the width. In the text format each word has a line, with all
    digits of the float32 numbers. In the binary format each word is followed by a space and the little-endian numbers.
    """
    lines = [f"{len(words)} {rows.shape[1]}\n".encode()]
    for word, row in zip(words, rows, strict=True):
        if binary:
            lines.append(word.encode() + b" " + row.astype("<f4").tobytes() + b"\n")
        else:
            lines.append(f"{word} {' '.join(f'{number:.9g}' for number in row.tolist())}\n".encode())
    return b"".join(lines)


def _table(network: Network, folder: Path, stage: str | None) -> tuple[str, np.ndarray]:
    """Return the key of the embedding that has a table of the vocabulary, and that table.

    Raises:
        UsageError: if no embedding has a table, or several and none is chosen.
    """
    import torch

    from seqpipe.config.contract import expected_outputs
    from seqpipe.config.init_from import relative_path

    modules = {
        stage.key: module for stage, module in network.stages if "table" in expected_outputs(stage.cls, ("ids",))
    }
    keys = ", ".join(modules) or "none"
    if stage is None and len(modules) > 1:
        raise UsageError(
            f"{relative_path(folder)}: several embeddings have a table; choose one by --stage (there is: {keys})"
        )
    key = stage or next(iter(modules), "")
    if key not in modules:
        what = f"no {stage} with a table" if stage else "no embedding with a table of word vectors, such as lookup"
        raise UsageError(f"{relative_path(folder)}: the run has {what} (there is: {keys})")
    with torch.no_grad():
        table: torch.Tensor = modules[key](torch.ones(1, 1, dtype=torch.int64))["table"]
    return key, table.detach().float().numpy()
