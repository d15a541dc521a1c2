"""An Explanation and a file's name in, a heat map out: HTML, PNG or JSON by the name's ending."""

from __future__ import annotations

from pathlib import Path

from seqpipe.errors import UsageError
from seqpipe.files import json_bytes, write
from seqpipe.runtime.explain.maps import Explanation

ENDINGS = (".html", ".png", ".json")


def ending(path: Path) -> str:
    """What is to be written there; UsageError if it is none of the known ones."""
    suffix = path.suffix.lower()
    if suffix not in ENDINGS:
        raise UsageError(f"-o {path}: a heat map is one of {', '.join(ENDINGS)}, by the ending of the file's name")
    return suffix


def draw(explanation: Explanation, path: Path, font: Path | None = None) -> None:
    """Writes the file, whole or not at all.

    Args:
        explanation: What is shown.
        path: Its ending, .html, .png or .json, says as what.
        font: For .png: a font that has the text's characters; those of this machine by default.

    Raises:
        UsageError: if the ending is another, or the text is too long for a picture.
        EnvError: if Pillow is not installed, or no font has a character of the text.
    """
    kind = ending(path)
    if font is not None and kind != ".png":
        raise UsageError(f"--font: only a picture (.png) is drawn with a font, not {path.name}; leave it out")
    if kind == ".html":
        from seqpipe.runtime.explain.html import page

        write(path, page(explanation).encode())
    elif kind == ".png":
        from seqpipe.runtime.explain.png import picture

        write(path, picture(explanation, font))
    else:
        write(path, json_bytes(explanation.data(), indent=1) + b"\n")
