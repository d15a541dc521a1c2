"""Write an Explanation as a heat map, an HTML page, or as JSON, by the ending of the file's name."""

from __future__ import annotations

from pathlib import Path

from seqpipe.errors import UsageError
from seqpipe.files import json_bytes, write
from seqpipe.runtime.explain.html import page
from seqpipe.runtime.explain.maps import Explanation


def check_ending(path: Path) -> None:
    """Raise UsageError if a file of this name is neither HTML nor JSON."""
    suffix = path.suffix.lower()
    if suffix not in (".html", ".json"):
        cure = f"write {path.stem}.html, which a browser shows and prints, or {path.stem}.json"
        raise UsageError(f"-o {path}: a heat map is a page (.html) or data (.json); {cure}")


def draw(explanation: Explanation, path: Path) -> None:
    """Write the file, whole or not at all; UsageError if its ending is neither .html nor .json."""
    check_ending(path)
    if path.suffix.lower() == ".html":
        write(path, page(explanation).encode())
    else:
        write(path, json_bytes(explanation.data(), indent=1) + b"\n")
