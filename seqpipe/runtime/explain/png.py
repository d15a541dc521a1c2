"""An Explanation in, the bytes of one PNG out, drawn by Pillow."""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqpipe.errors import EnvError, UsageError
from seqpipe.runtime.explain.figures import Figure
from seqpipe.runtime.explain.fonts import Fonts
from seqpipe.runtime.explain.maps import Attention, Explanation
from seqpipe.runtime.explain.views import Piece, Row, View, views

WIDTH, MARGIN, SIZE, LINE = 1200, 40, 22, 36  # pixels
BAR, CELL = 170, 26
SIDE, DOT = 640, 8
MOST_HEIGHT, MOST_PAIRS = 20_000, 40
INK, FAINT, HEAT, PAPER = (20, 20, 20), (105, 105, 105), (255, 145, 0), (255, 255, 255)
_PARTS = re.compile(r"\n|[^\S\n]+|\S+")  # what a line may be broken between

Colour = tuple[int, int, int]


def picture(explanation: Explanation, font: Path | None = None) -> bytes:
    """The picture.

    Raises:
        EnvError: if Pillow is not installed, or no font has a character of the text.
        UsageError: if the text is too long for a picture.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise EnvError("Pillow, which draws .png, is not installed: pip install 'seqpipe-nlp[explain]'") from error
    sheet = _Sheet(Fonts(SIZE, font))
    for line in explanation.answer_lines:
        sheet.paragraph([Piece(line)])
    if explanation.figure is not None:
        _figure(sheet, explanation.figure)
    for view in views(explanation):
        _view(sheet, explanation.text, view)
    for attention in explanation.attentions:
        if attention.is_matrix:
            _pairs(sheet, explanation.text, attention)
    image = Image.new("RGB", (max(WIDTH, sheet.right + MARGIN), sheet.y + MARGIN), PAPER)
    sheet.onto(image)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


@dataclass
class _Sheet:
    """What is drawn, collected from top to bottom before the picture's height is known."""

    fonts: Fonts
    y: int = MARGIN
    right: int = WIDTH - MARGIN
    boxes: list[tuple[tuple[float, float, float, float], Colour]] = field(default_factory=list)
    texts: list[tuple[float, float, str, Any, Colour, bool]] = field(default_factory=list)
    ways: list[tuple[list[tuple[float, float]], bool]] = field(default_factory=list)  # and whether it is filled
    dots: list[tuple[float, float, int, Colour]] = field(default_factory=list)

    def down(self, pixels: int) -> None:
        self.y += pixels
        if self.y > MOST_HEIGHT:
            raise UsageError(f"the text is too long for a picture of {MOST_HEIGHT:,} pixels; write .html")

    def box(self, x: float, y: float, width: float, height: float, shade: float) -> None:
        self.boxes.append(((x, y, x + width, y + height), _shaded(shade)))

    def text(self, x: float, y: float, text: str, colour: Colour = INK, upward: bool = False) -> None:
        for run, font in self.fonts.runs(text):
            self.texts.append((x, y, run, font, colour, upward))
            x, y = (x, y - font.getlength(run)) if upward else (x + font.getlength(run), y)

    def width(self, text: str) -> float:
        return float(sum(font.getlength(run) for run, font in self.fonts.runs(text)))

    def paragraph(self, pieces: Sequence[Piece], left: int = MARGIN, colour: Colour = INK) -> None:
        """Text with shades, broken into lines between words, in a long word anywhere."""
        room, backward = WIDTH - MARGIN - left, _backward("".join(piece.text for piece in pieces))
        for line in _lines(self, pieces, room):
            x = 0.0
            for part, shade, width in line:
                start = left + (room - x - width if backward else x)
                if shade:
                    self.box(start, self.y, width, LINE - 4, shade)
                self.text(start, self.y + 2, part, colour)
                x += width
            self.down(LINE)

    def onto(self, image: Any) -> None:
        from PIL import Image, ImageDraw

        draw = ImageDraw.Draw(image)
        for box, colour in self.boxes:
            draw.rectangle(box, fill=colour)
        for way, is_filled in self.ways:
            if is_filled and len(way) > 2:
                draw.polygon(way, fill=_shaded(0.15))
            draw.line(way, fill=HEAT, width=3)
        for x, y, radius, colour in self.dots:
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
        for x, y, text, font, colour, upward in self.texts:
            if not upward:
                draw.text((x, y + SIZE), text, font=font, fill=colour, anchor="ls")
                continue
            tile = Image.new("L", (round(font.getlength(text)) + 2, LINE))
            ImageDraw.Draw(tile).text((0, SIZE), text, font=font, fill=255, anchor="ls")
            turned = tile.rotate(90, expand=True)
            image.paste(colour, (round(x), round(y) - turned.height), turned)


def _shaded(shade: float) -> Colour:
    red, green, blue = (round(paper + (warm - paper) * shade) for paper, warm in zip(PAPER, HEAT, strict=True))
    return red, green, blue


def _figure(sheet: _Sheet, figure: Figure) -> None:
    """The points with their positions, and the way that was chosen through them."""
    sheet.down(LINE // 2)
    sheet.paragraph([Piece(figure.title)])
    left, top = MARGIN + LINE, sheet.y + LINE
    way = [(x + left, y + top) for x, y in figure.lines(SIDE)]
    sheet.ways += [(way, figure.is_filled)] if len(way) > 1 else []
    for mark in figure.marks(SIDE):
        x, y = mark.x + left, mark.y + top
        sheet.dots.append((x, y, DOT + 4 * mark.is_first, HEAT if mark.is_chosen else FAINT))
        sheet.text(x + 12, y - LINE, mark.label)
    sheet.down(SIDE + 2 * LINE)


def _lines(sheet: _Sheet, pieces: Sequence[Piece], room: float) -> list[list[tuple[str, float, float]]]:
    """Lines of (text, shade, width), none wider than the room."""
    lines: list[list[tuple[str, float, float]]] = [[]]
    x = 0.0
    for piece in pieces:
        for part in _PARTS.findall(piece.text.replace("\r\n", "\n").expandtabs(4)):
            if part == "\n":
                lines.append([])
                x = 0.0
                continue
            for some in [part] if sheet.width(part) <= room else part:
                width = sheet.width(some)
                if x + width > room:
                    lines.append([])
                    x = 0.0
                if x or some.strip():  # no blanks where a line continues
                    lines[-1].append((some, piece.shade, width))
                    x += width
    return lines


def _view(sheet: _Sheet, text: str, view: View) -> None:
    sheet.down(LINE // 2)
    sheet.paragraph([Piece(view.title)])
    sheet.paragraph([Piece(view.legend)], colour=FAINT)
    sheet.down(LINE // 4)
    for row in view.rows(text):
        _row(sheet, row)


def _row(sheet: _Sheet, row: Row) -> None:
    if row.weight is None:
        sheet.paragraph(_trimmed(row.pieces))
        return
    sheet.box(MARGIN, sheet.y + 4, 70 * row.share, LINE - 12, 1.0)
    sheet.text(MARGIN + 80, sheet.y + 2, f"{row.weight:.4f}", FAINT)
    sheet.paragraph(_trimmed(row.pieces), MARGIN + BAR)


def _trimmed(pieces: Sequence[Piece]) -> list[Piece]:
    """Without the line ends at the end, which every row has anyway."""
    kept = list(pieces)
    if kept and kept[-1].weight is None:
        kept[-1] = Piece(kept[-1].text.rstrip())
    return kept


def _pairs(sheet: _Sheet, text: str, attention: Attention) -> None:
    """The mean of the heads as a matrix, a row looking at its columns."""
    high, count = attention.mean.shape
    if max(high, count) > MOST_PAIRS:
        raise UsageError(
            f"{attention.name}: {high:,} × {count:,} weights are too many for a picture; at most {MOST_PAIRS} words. "
            "Write .html or .json"
        )
    words = [text[a:b] for a, b in attention.places]
    rows = words if attention.written is None else [*attention.written]
    longest = round(max(map(sheet.width, {*words, *rows}), default=0)) + 12
    mean, heads = attention.mean, len(attention.weights)
    most = float(mean.max(initial=0.0))
    sheet.down(LINE // 2)
    of = f", mean of {heads} heads" if heads > 1 else ""
    sheet.paragraph([Piece(f"{attention.title}{of})")])
    sheet.paragraph([Piece(f"darkest: {most:.4f}")], colour=FAINT)
    sheet.down(longest)
    for j, word in enumerate(words):
        sheet.text(MARGIN + longest + j * CELL - 4, sheet.y - 6, word, upward=True)
    for word, row in zip(rows, mean.tolist(), strict=True):
        sheet.text(MARGIN, sheet.y, word)
        for j, weight in enumerate(row):
            sheet.box(MARGIN + longest + j * CELL, sheet.y, CELL - 2, CELL - 2, weight / most if most else 0.0)
        sheet.down(CELL)
    sheet.right = max(sheet.right, MARGIN + longest + count * CELL)


def _backward(text: str) -> bool:
    """Whether the first letter that has a direction is of a script that runs from right to left."""
    directions = (unicodedata.bidirectional(c) for c in text)
    return next((kind in ("R", "AL") for kind in directions if kind in ("L", "R", "AL")), False)
