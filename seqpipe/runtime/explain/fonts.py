"""A text in, runs of it with a font that has their characters out; what no font has is an error, never a box."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from seqpipe.errors import EnvError, UsageError
from seqpipe.features.vocabulary import replace_surrogates

FOLDERS = (
    "/usr/share/fonts",
    "/usr/local/share/fonts",
    "~/.fonts",
    "~/.local/share/fonts",
    "/System/Library/Fonts",
    "/Library/Fonts",
    "~/Library/Fonts",
    "C:/Windows/Fonts",
)
PREFERRED = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "Arial.ttf", "arial.ttf")
_KINDS = (".ttf", ".otf", ".ttc")
_MISSING = "\U0010ffff"  # of no script: what a font draws for a character that it does not have
_JOINED = ("ARABIC", "SYRIAC", "DEVANAGARI", "BENGALI", "TAMIL", "TELUGU", "KANNADA", "MALAYALAM", "KHMER", "MYANMAR")


class Fonts:
    """The fonts of this machine, opened as characters ask for them.

    Args:
        size: Height of the letters, in pixels.
        given: A font file that is asked first.
    """

    def __init__(self, size: int, path: Path | None = None):
        from PIL import ImageFont, features

        self.size, self._pillow = size, ImageFont
        self._joins = features.check("raqm")  # what joins and reorders letters where a script does
        self._opened: list[_Font] = []
        self._of: dict[str, _Font] = {}
        if path is not None:
            self._opened = [self._font(path)]

    def runs(self, text: str) -> list[tuple[str, Any]]:
        """The text in stretches, each with its Pillow font; EnvError names a character that no font has."""
        shown = [c for c in replace_surrogates(text) if not _silent(c)]
        fonts: list[_Font] = []
        for c in shown:
            self._check_joined(c)
            same_font = fonts and (unicodedata.category(c)[0] == "M" or c.isspace()) and fonts[-1].has(c)
            fonts.append(fonts[-1] if same_font else self._find(c))
        places = groupby(zip(shown, fonts, strict=True), key=lambda pair: pair[1])
        return [("".join(c for c, _ in some), font.pillow) for font, some in places]

    def _find(self, c: str) -> _Font:
        if c not in self._of:
            font_with_glyph = next((font for font in self._all() if font.has(c)), None)
            if font_with_glyph is None:
                raise EnvError(
                    f"no font of this machine has {c} (U+{ord(c):04X}, {unicodedata.name(c, 'without a name')}); "
                    "install the Noto fonts (Debian: apt install fonts-noto-core fonts-noto-cjk; others: "
                    "https://fonts.google.com/noto), name a font that has it with --font FILE, or write .html"
                )
            self._of[c] = font_with_glyph
        return self._of[c]

    def _check_joined(self, c: str) -> None:
        if not self._joins and unicodedata.name(c, "").startswith(_JOINED):
            raise EnvError(
                f"{c} (U+{ord(c):04X}) is of a script whose letters join, which this Pillow cannot draw without the "
                "libraries raqm and fribidi (Debian: apt install libfribidi0); or write .html, which a browser draws"
            )

    def _all(self) -> Iterator[_Font]:
        """The fonts opened so far, then further ones of the machine, at last Pillow's own, which has Latin letters."""
        yield from self._opened
        while self._left:
            path = self._left.pop(0)
            try:
                self._opened.append(self._font(path) if path else _Font(self._pillow.load_default(self.size)))
            except UsageError:  # of many files some are no fonts, or hold pictures of one size
                continue
            yield self._opened[-1]

    @cached_property
    def _left(self) -> list[Path | None]:
        """Font files in the usual places, the preferred first, plain before bold; None is Pillow's own."""
        folders = [Path(folder).expanduser() for folder in FOLDERS if sys.platform == "win32" or folder[1] != ":"]
        paths = [
            Path(folder, name)
            for top in folders
            for folder, _, names in os.walk(top)
            for name in names
            if name.lower().endswith(_KINDS) and not name.startswith("LastResort")  # which is boxes for everything
        ]
        odd = ("bold", "italic", "oblique", "condensed", "mono", "light", "thin", "black")

        def rank(path: Path) -> tuple[int, int, str]:
            first = PREFERRED.index(path.name) if path.name in PREFERRED else len(PREFERRED)
            return first, sum(word in path.name.lower() for word in odd), str(path)

        return [*sorted(paths, key=rank), None]

    def _font(self, path: Path) -> _Font:
        try:
            return _Font(self._pillow.truetype(path, self.size))
        except OSError as error:
            raise UsageError(f"--font {path}: no font that Pillow can open: {error}; name a .ttf or .otf") from error


class _Font:
    """A Pillow font that can be asked what it has."""

    def __init__(self, pillow: Any):
        self.pillow = pillow
        self._missing = self._shape(_MISSING)

    def has(self, c: str) -> bool:
        return c.isspace() or self._shape(c) != self._missing

    def _shape(self, c: str) -> tuple[Any, bytes]:
        mask, place = self.pillow.getmask2(c)
        return (mask.size, place), bytes(mask)


def _silent(c: str) -> bool:
    """Characters that no font shows: controls, formats, variation selectors."""
    return unicodedata.category(c) in ("Cc", "Cf") or "\ufe00" <= c <= "\ufe0f"
