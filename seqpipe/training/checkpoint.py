"""Save and load training state: one file with a checksum, written atomically and synced, refused if it is damaged."""

from __future__ import annotations

import hashlib
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from seqpipe.config.run_layout import LAST, RUN_FORMAT, refuse_other_format
from seqpipe.errors import DataError, UsageError
from seqpipe.files import sha256, write, writing

_HEADER = re.compile(rb"seqpipe-checkpoint-(\d{1,9})\n([0-9a-f]{64})\n")


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a state of tensors and plain values; a former file is kept if this fails.

    It is written to the disk, hashed there, and its header last, since it may be as large as the memory that is left.
    """
    with writing(path) as temporary, temporary.open("w+b") as file:
        file.write(_header("0" * 64))
        try:
            torch.save(state, file)
        except RuntimeError as error:  # after an error of the disk, torch cannot complete its archive
            if isinstance(error.__context__, OSError):
                raise error.__context__ from error
            raise
        file.seek(len(_header("0" * 64)))
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        file.write(_header(digest))
        file.flush()


def _header(digest: str) -> bytes:
    return f"seqpipe-checkpoint-{RUN_FORMAT}\n{digest}\n".encode()


def load(path: Path) -> dict[str, Any]:
    """Load the state of a checkpoint; only tensors and plain values are read.

    Raises:
        DataError: if the file is damaged.
        UsageError: if another version of seqpipe wrote it in another format.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; run with --fresh to train again") from error
    with file:
        header = _HEADER.match(file.read(len(_header("0" * 64)) + 9))
        file.seek(header.end() if header else 0)
        if header is None or header[2].decode() != hashlib.file_digest(file, "sha256").hexdigest():
            raise DataError(f"{path}: damaged checkpoint; remove it to train from the start, or run with --fresh")
        refuse_other_format(path, int(header[1]))
        file.seek(header.end())
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise DataError(
                f"{path}: has more than tensors and plain values; run with --fresh to train again"
            ) from error
    return dict(state)


def best(folder: Path) -> tuple[Path, str]:
    """Return the file of a run's best weights and its sha256; UsageError if the run has none yet."""
    run = folder.parent
    if not (folder / LAST).exists():
        raise UsageError(f"{run}: not trained yet; run `seqpipe train` or `seqpipe run` first")
    progress = load(folder / LAST)["progress"]
    if not progress["best_file"]:
        raise UsageError(f"{run}: stopped before the first epoch ended; run the same command again to resume")
    return folder / progress["best_file"], progress["best_sha256"]


def load_best(folder: Path) -> dict[str, torch.Tensor]:
    """Load the best weights of a run, even while it trains and replaces them."""
    while True:
        path, digest = best(folder)
        try:
            return load_weights(path, digest)
        except DataError:
            if best(folder) == (path, digest):
                raise


def save_weights(path: Path, weights: dict[str, torch.Tensor]) -> str:
    """Write weights as safetensors and return the file's sha256."""
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        tensor = tensor.detach().cpu().contiguous()
        is_tied = any(tensor.data_ptr() == written.data_ptr() for written in tensors.values())
        tensors[name] = tensor.clone() if is_tied else tensor  # safetensors refuses tensors that share their memory
    data = save_tensors(tensors)
    write(path, data)
    return sha256(data)


def load_weights(path: Path, digest: str) -> dict[str, torch.Tensor]:
    """Load weights from a file; DataError if its sha256 differs."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such weights; run with --fresh to train again") from error
    if sha256(data) != digest:
        raise DataError(f"{path}: damaged weights; run with --fresh to train again")
    return dict(load_tensors(data))
