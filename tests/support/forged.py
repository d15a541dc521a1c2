"""Bundles whose hashes are right, whatever they state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqpipe.files import sha256
from seqpipe.runtime.manifest import FORMAT, MANIFEST, OF_TEXTS, Manifest, seal, unseal


def plain(manifest: Manifest) -> dict[str, Any]:
    """What a manifest states besides its files, as JSON."""
    content = unseal(seal(manifest.content()), "stated")
    return {key: value for key, value in content.items() if key != "files"}


def write(path: Path, files: Mapping[str, bytes], content: Mapping[str, Any]) -> Path:
    """Write these files and a bundle.json of this content, with the hashes of the files and its own."""
    path.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    entries = {name: {"sha256": sha256(data), "bytes": len(data)} for name, data in files.items()}
    sealed = seal({"format": FORMAT, "version": OF_TEXTS, **content, "files": entries})
    (path / MANIFEST).write_bytes(sealed)
    return path
