"""Save and load training state: one file with a checksum, written atomically and synced, refused if it is damaged."""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from seqpipe.config.run_layout import FORMAT, LAST, refuse_other_format
from seqpipe.errors import DataError, UsageError
from seqpipe.files import sha256, write

_HEADER = re.compile(rb"seqpipe-checkpoint-(\d{1,9})\n([0-9a-f]{64})\n")


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a state of tensors and plain values; a former file is kept if this fails."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    write(path, f"seqpipe-checkpoint-{FORMAT}\n{sha256(payload)}\n".encode() + payload)


def load(path: Path) -> dict[str, Any]:
    """Load the state of a checkpoint; only tensors and plain values are read.

    Raises:
        DataError: if the file is damaged.
        UsageError: if another version of seqpipe wrote it in another format.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; run with --fresh to train again") from error
    header = _HEADER.match(data)
    payload = data[header.end() :] if header else b""
    if header is None or header[2].decode() != sha256(payload):
        raise DataError(f"{path}: damaged checkpoint; remove it to train from the start, or run with --fresh")
    refuse_other_format(path, int(header[1]))
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DataError(f"{path}: has more than tensors and plain values; run with --fresh to train again") from error
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
    data = save_tensors(
        {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in weights.items()}
    )
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
