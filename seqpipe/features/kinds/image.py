"""Feature kind `image`: the pixels of a picture of fixed size, one row of numbers for each row of pixels."""

from __future__ import annotations

import io
import math
import random
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np

from seqpipe.errors import DataError, install_command
from seqpipe.features.document import Doc
from seqpipe.features.kinds.base import FeatureKind, unknown_kind
from seqpipe.features.kinds.matrix import Matrix
from seqpipe.features.media import is_encoded, is_pillow, read_bytes

MOST_PIXELS = 50_000_000  # of a picture; more are refused before it is decoded
MOST_SIDE = 65_535  # pixels of a side, as in JPEG
MAX_SIDE = 4_096  # rows, or columns, of the feature
_PIXELS_OF_A_TOKEN = 1_024  # which are decoded in about the time of a token
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # markers of a JPEG after which its size stands
_SEGMENTS = 1_000  # of a JPEG, in which its size is looked for
_ROWS_PER_BLOCK = 64  # rows of pixels that are resized together
_MIN_DEVIATION = 1e-7  # a smaller deviation of a channel is a rounding error
_RED, _GREEN, _BLUE = 19595, 38470, 7471  # weights of grey (ITU-R 601) in units of 1 / 65536, as of Pillow


@dataclass(frozen=True)
class Image(Matrix):
    """The pixels of a picture, resized to H rows and W columns, from 0 to 1, minus the channel's mean in the training
    data, divided by its standard deviation there; 0 padding.

    A picture is a PNG or JPEG file, which Pillow decodes where it is installed, or an array of numbers from 0 to 255,
    (rows, columns) or (rows, columns, 3). F is W times C: the C channels of a pixel, one (grey) or three (red, green,
    blue), are side by side. Grey is (19595 red + 38470 green + 7471 blue + 32768) / 65536, rounded down; a grey picture
    has three equal channels. The orientation in EXIF data is applied.

    With `background`, a level from 0 to 255, what is transparent is composed on this grey, v becoming
    (v a + background (255 - a) + 127) // 255 for the opacity a, and an array of fractions that are all at most 1 is
    refused, as its range is another; without it, as in older bundles, transparency is ignored. The numbers of an array
    are from 0 to `maximum`, 255 or 1.

    Resizing is bilinear with antialiasing, columns first, then rows: of n pixels at the places j + 1/2, the new pixel i
    of m is their mean with the weights max(0, 1 - |j + 1/2 - c| / s), where c = (i + 1/2) n / m and s = max(1, n / m).

    A constant channel is divided by 1. Without `normalise` means are 0 and deviations 1. Only for a source without a
    tokenizer.
    """

    height: int = 32
    width: int = 32
    channels: int = 1
    background: int | None = None
    maximum: int = 255
    most: int = field(default=MOST_PIXELS, compare=False)  # pixels of a picture
    kind = "image"
    shape = "(B, H, F)"
    is_media = True

    @property
    def size(self) -> int:
        """F."""
        return self.width * self.channels

    def sizes(self, name: str) -> dict[str, int]:
        """Return F under the feature's name, and C as `channels`."""
        return {name: self.size, "channels": self.channels}

    def rows(self, value: Any, place: str) -> np.ndarray:
        """Return a picture as H rows of W times C numbers from 0 to 1; DataError if it cannot be read."""
        if is_encoded(value):
            pixels = self._decode(read_bytes(value, place), place)
        else:
            pixels = self._of_pillow(value, place) if is_pillow(value) else self._of_array(value, place)
        is_coloured, columns = pixels.ndim == 3 and self.channels == 3, pixels.shape[1]
        resized = _resize(pixels, self.height, _flat if pixels.ndim == 2 or is_coloured else _grey)
        across = resized.reshape(self.height, columns, -1).transpose(1, 0, 2).reshape(columns, -1)
        resized = _resize(across, self.width).reshape(self.width, self.height, -1).transpose(1, 0, 2)
        shape = (self.height, self.width, self.channels)  # a grey picture has equal channels
        return (np.broadcast_to(resized, shape).reshape(self.height, -1) / 255).astype(np.float32)

    def media_tokens(self, value: Any, place: str) -> int:
        size: tuple[int, int] | None = 1, 1
        if is_encoded(value):
            size = _size_in_header(read_bytes(value, place))
        elif is_pillow(value):
            size = value.height, value.width
        elif isinstance(value, list | tuple | np.ndarray) and len(value):
            size = len(value), len(value[0]) if isinstance(value[0], list | tuple | np.ndarray) else 1
        if size is None:  # it is seen when the picture is decoded
            return 1 + self.most // _PIXELS_OF_A_TOKEN
        self._check_size(*size, place)
        return 1 + math.prod(size) // _PIXELS_OF_A_TOKEN

    def limited(self, pixels: int, samples: int) -> Self:
        return replace(self, most=min(self.most, pixels))

    def initialise_from(self, older: FeatureKind | None) -> Self:
        """Return the feature with the means and deviations of an older one: numbers keep their meaning."""
        if isinstance(older, type(self)) and older.channels == self.channels:
            return replace(self, means=older.means, deviations=older.deviations)
        return self

    def fit(self, docs: Iterable[Doc]) -> Self:
        """Return the feature with the means and deviations of the channels of these pictures, if it has none."""
        if self.means:
            return self
        if not self.normalise:
            return replace(self, means=(0.0,) * self.channels, deviations=(1.0,) * self.channels)
        count, sums, squares = 0, np.zeros(self.channels), np.zeros(self.channels)
        for doc in docs:
            if doc.rows is not None:
                pixels = doc.rows.astype(np.float64).reshape(-1, self.channels)
                count, sums, squares = count + len(pixels), sums + pixels.sum(0), squares + (pixels**2).sum(0)
        if not count:
            raise DataError("no record has a picture; correct the field of the input")
        means = sums / count
        deviations = np.sqrt(np.maximum(0, squares / count - means**2))
        deviations[deviations < _MIN_DEVIATION] = 1.0
        return replace(self, means=tuple(means.tolist()), deviations=tuple(deviations.tolist()))

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        array = np.zeros((len(docs), longest, self.size), np.float32)
        means, deviations = np.tile(self.means, self.width), np.tile(self.deviations, self.width)
        for rows, doc in zip(array, docs, strict=True):
            if doc.rows is not None:
                rows[: len(doc)] = (doc.rows.astype(np.float64) - means) / deviations
        return array

    def manifest(self) -> dict[str, Any]:
        size: dict[str, Any] = {"height": self.height, "width": self.width, "channels": self.channels}
        size |= {} if self.background is None else {"background": self.background, "maximum": self.maximum}
        return {**super().manifest(), **size}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizers: Mapping[str, Any]) -> Self:
        height, width, channels = (int(manifest[key]) for key in ("height", "width", "channels"))
        means, deviations = (tuple(map(float, manifest[key])) for key in ("means", "deviations"))
        if channels not in (1, 3) or not len(means) == len(deviations) == channels:
            counts = f"{channels} channels, {len(means)} means and {len(deviations)} deviations"
            raise unknown_kind(f"{cls.kind!r} with {counts}")
        stated = {key: manifest[key] for key in ("background", "maximum") if key in manifest}
        return cls(height, width, channels, means=means, deviations=deviations, **stated)

    def out_of_bounds(self) -> str:
        if not (1 <= self.height <= MAX_SIDE and 1 <= self.width <= MAX_SIDE):
            return f"image: {self.height} rows of {self.width} pixels are not between 1 and {MAX_SIDE:,}"
        if self.background is not None and not (type(self.background) is int and 0 <= self.background <= 255):
            return "image: a background that is no whole number from 0 to 255"
        if self.maximum not in (1, 255):
            return f"image: a maximum of {self.maximum}, which must be 1 or 255"
        return super().out_of_bounds()

    def value_of(self, rows: Sequence[Sequence[float]]) -> Any:
        return self._of_levels(np.rint(np.abs(rows) * (255 / 20)).astype(int))

    def example_value(self, draw: random.Random) -> Any:
        rows, columns = draw.randint(1, 40), draw.randint(1, 40)
        return self._of_levels(np.array([[draw.randint(0, 255) for _ in range(columns)] for _ in range(rows)]))

    def _of_levels(self, levels: np.ndarray) -> Any:
        return (levels if self.maximum == 255 else levels / 255).tolist()

    def _decode(self, data: bytes, place: str) -> np.ndarray:
        """Return the pixels of a PNG or JPEG file, (rows, columns) or (rows, columns, 3), uint8."""
        try:
            from PIL import Image as Pillow
            from PIL import UnidentifiedImageError as UnidentifiedError
        except ImportError as error:
            raise DataError(f"{place} needs Pillow: {install_command('media')}, or give an array of numbers") from error
        try:
            with Pillow.open(io.BytesIO(data), formats=("PNG", "JPEG")) as picture:
                return self._of_pillow(picture, place)
        except DataError:
            raise
        except Exception as error:  # for damaged files Pillow's readers raise exceptions of many types
            fix = "give a whole file of one of these formats"
            reason = "it begins like neither" if isinstance(error, UnidentifiedError) else error
            raise DataError(f"{place} cannot be decoded as PNG or JPEG ({reason}); {fix}") from error

    def _of_pillow(self, picture: Any, place: str) -> np.ndarray:
        """Return the pixels of a picture of Pillow, which may not be decoded yet."""
        from PIL import ImageOps

        self._check_size(picture.height, picture.width, place)
        if picture.mode[0] in "IF":
            raise DataError(f"{place} is a picture with more than 8 bits a channel; convert it to 8 bits")
        picture = ImageOps.exif_transpose(picture)
        if self.background is not None and picture.has_transparency_data:
            picture = _composed(picture, self.background)
        picture.info.pop("transparency", None)  # of a palette; Pillow would warn that it is lost
        if picture.mode not in ("1", "L", "LA"):
            picture = picture.convert("RGB")
        if picture.mode != "RGB" or self.channels == 1:
            picture = picture.convert("L")
        return np.asarray(picture)

    def _of_array(self, value: Any, place: str) -> np.ndarray:
        """Return an array of pixels, (rows, columns) or (rows, columns, 3); DataError for any other value."""
        try:
            array = np.asarray(value)
        except (TypeError, ValueError):  # rows of several lengths
            array = np.array(None)
        if array.dtype.kind not in "iuf" or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3):
            fix = f"give a PNG or JPEG file, or numbers from 0 to {self.maximum} as rows of pixels, or of lists of 3"
            raise DataError(f"{place} must be a picture, not {type(value).__name__}; {fix}")
        if not array.size:
            raise DataError(f"{place} is a picture without pixels; leave it out")
        self._check_size(array.shape[0], array.shape[1], place)
        if not ((array >= 0) & (array <= self.maximum)).all():
            raise DataError(f"{place} has a pixel that is not between 0 and {self.maximum}; scale the numbers")
        if self.maximum == 1:
            return array * 255.0
        if self.background is not None and array.dtype.kind == "f" and 0 < array.max() <= 1:
            fix = "multiply them by 255, or train with `maximum: 1` of the embedding `image`"
            raise DataError(f"{place} has fractions from 0 to 1 only, and pixels are from 0 to 255; {fix}")
        return array

    def _check_size(self, rows: int, columns: int, place: str) -> None:
        if rows * columns > self.most or max(rows, columns) > MOST_SIDE:
            most = f"at most {self.most:,} are read, and {MOST_SIDE:,} in a row or column"
            raise DataError(f"{place} is a picture of {columns:,} x {rows:,} pixels, and {most}; make it smaller")


def _size_in_header(data: bytes) -> tuple[int, int] | None:
    """Return the rows and columns that a PNG or JPEG states, (1, 1) of any other file, and None of a hidden size."""
    if data.startswith(b"\x89PNG"):
        columns, rows = struct.unpack_from(">II", data.ljust(24, b"\0"), 16)
        return (rows, columns) if data[12:16] == b"IHDR" else None
    if not data.startswith(b"\xff\xd8"):
        return 1, 1
    at = 2
    for _ in range(_SEGMENTS):
        at = data.find(b"\xff", at)
        marker, start = data[at + 1 : at + 2], data[at + 2 : at + 9]
        if at < 0 or len(start) < 7:
            return None
        if marker[0] in _FRAMES:
            rows, columns = struct.unpack_from(">HH", start, 3)
            return rows, columns
        at += 1 if marker == b"\xff" else 2 + int.from_bytes(start[:2], "big")
    return None


def _composed(picture: Any, background: int) -> Any:
    """Return a picture of Pillow in RGB, on this grey where it is transparent."""
    from PIL import Image as Pillow

    layer, opaque = picture.convert("RGBA"), Pillow.new("RGB", picture.size, (background,) * 3)
    opaque.paste(layer, mask=layer)
    return opaque


def _flat(block: np.ndarray) -> np.ndarray:
    return block.reshape(len(block), -1).astype(np.float64)


def _grey(block: np.ndarray) -> np.ndarray:  # (N, columns, 3) -> (N, columns)
    return np.floor((block @ np.array([_RED, _GREEN, _BLUE], float) + 32768) / 65536)


def _resize(pixels: np.ndarray, size: int, values: Callable[[np.ndarray], np.ndarray] = _flat) -> np.ndarray:
    """Resize the first axis of (N, …) to (size, M); `values` makes (n, M) of n rows, each of which is read once."""
    windows = _windows(len(pixels), size)
    firsts, ends = (np.array(column) for column in zip(*[(f, f + len(w)) for f, w in windows], strict=True))
    resized: np.ndarray | float = 0.0
    for start in range(0, len(pixels), _ROWS_PER_BLOCK):
        block = values(pixels[start : start + _ROWS_PER_BLOCK])
        if isinstance(resized, float):
            resized = np.zeros((size, block.shape[1]))
        used = range(np.searchsorted(ends, start, "right"), np.searchsorted(firsts, start + len(block)))
        weights = np.zeros((len(used), len(block)))
        for row, (first, window) in zip(weights, (windows[i] for i in used), strict=True):
            skipped = max(0, start - first)
            part = window[skipped : start + len(block) - first]
            row[first + skipped - start :][: len(part)] = part
        resized[used.start : used.stop] += weights @ block
    return np.asarray(resized)


@lru_cache(maxsize=64)
def _windows(size: int, new_size: int) -> list[tuple[int, np.ndarray]]:
    """Return the first pixel that each new pixel reads, and the weights of these pixels."""
    scale = size / new_size
    support, windows = max(1.0, scale), []
    for i in range(new_size):
        center = (i + 0.5) * scale
        first, last = max(0, int(center - support + 0.5)), min(size, int(center + support + 0.5))
        weights = np.maximum(0.0, 1 - np.abs(np.arange(first, last) + 0.5 - center) / support)
        windows.append((first, weights / weights.sum()))
    return windows
