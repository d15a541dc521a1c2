"""Files of word vectors as word2vec writes them, and those of a trained run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from seqpipe.config.contract import expected_outputs
from seqpipe.config.init_from import relative_path
from seqpipe.errors import UsageError
from seqpipe.features.vocabulary import MASK, SPECIALS
from seqpipe.files import write
from seqpipe.training.pipeline import Pipeline


def write_vectors(pipeline: Pipeline, folder: Path, path: Path, binary: bool = False, stage: str | None = None) -> int:
    """Write the table of a run's embedding to a file; return the number of words.

    As word2vec's text: a first line with the number of words and of numbers a word, then a line for each word; the
    numbers are those of float32, none is rounded. As its binary: the same first line, then each word, a blank and its
    numbers, little end first. Special tokens, and tokens with white space in them, are left out.

    Args:
        pipeline: Of the run, trained.
        folder: The run's, for messages.
        path: The file.
        binary: Whether it is written in binary.
        stage: The key of the embedding, such as `embedding.1`; None: the only one.

    Raises:
        UsageError: if no embedding has a table, or several and none is chosen.
    """
    key, table = _table(pipeline, folder, stage)
    vocabulary = pipeline.artifacts.vocabularies[pipeline.source_of[key]]
    ids = [i for i, word in enumerate(vocabulary) if is_word(word)]
    write(path, word2vec([vocabulary[i] for i in ids], table[ids], binary))
    return len(ids)


def word2vec(words: Sequence[str], rows: np.ndarray, binary: bool) -> bytes:
    """The file that holds these words and their vectors, in word2vec's text or binary format."""
    lines = _binary_lines(words, rows) if binary else _text_lines(words, rows)
    return f"{len(words)} {rows.shape[1]}\n".encode() + b"".join(lines)


def _table(pipeline: Pipeline, folder: Path, stage: str | None) -> tuple[str, np.ndarray]:
    """Return the key of the embedding that has a table of the vocabulary, and that table."""
    modules = {
        stage.key: module for stage, module in pipeline.stages if "table" in expected_outputs(stage.cls, ("ids",))
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


def is_word(word: str) -> bool:
    """Whether such a file can hold this token: it is not special and has no white space in it."""
    return word not in (*SPECIALS, MASK) and bool(word) and not any(character.isspace() for character in word)


def _text_lines(words: Sequence[str], rows: np.ndarray) -> Iterator[bytes]:
    for word, row in zip(words, rows, strict=True):
        yield f"{word} {' '.join(f'{number:.9g}' for number in row.tolist())}\n".encode()


def _binary_lines(words: Sequence[str], rows: np.ndarray) -> Iterator[bytes]:
    for word, row in zip(words, rows, strict=True):
        yield word.encode() + b" " + row.astype("<f4").tobytes() + b"\n"
