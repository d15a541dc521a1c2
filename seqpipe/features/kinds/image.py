"""Feature kind `image`: the pixels of a picture of fixed size, one row of numbers for each row of pixels."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np

from seqpipe.errors import DataError, install_command
from seqpipe.features.document import Doc
from seqpipe.features.kinds.base import TOKEN_AXES, FeatureKind, unknown_kind
from seqpipe.features.media import is_encoded, is_pillow, read_bytes

MOST_PIXELS = 50_000_000  # of a picture; more are refused before it is decoded
MOST_SIDE = 65_535  # pixels of a side, as in JPEG
LARGEST = 4_096  # rows, or columns, of the feature
_CONSTANT = 1e-7  # a smaller deviation of a channel is a rounding error
_RED, _GREEN, _BLUE = 19595, 38470, 7471  # weights of grey (ITU-R 601) in units of 1 / 65536, as of Pillow


@dataclass(frozen=True)
class Image(FeatureKind):
    """The pixels of a picture, resized to H rows and W columns, from 0 to 1, minus the channel's mean in the training
    data, divided by its standard deviation there; 0 padding.

    A picture is a PNG or JPEG file, which Pillow decodes where it is installed, or an array of numbers from 0 to 255,
    (rows, columns) or (rows, columns, 3). F is W times C: the C channels of a pixel, one (grey) or three (red, green,
    blue), are side by side. Grey is (19595 red + 38470 green + 7471 blue + 32768) / 65536, rounded down; a grey picture
    has three equal channels. Transparency is ignored, and the orientation in EXIF data is applied.

    Resizing is bilinear with antialiasing, columns first, then rows: of n pixels at the places j + 1/2, the new pixel i
    of m is their mean with the weights max(0, 1 - |j + 1/2 - c| / s), where c = (i + 1/2) n / m and s = max(1, n / m).

    A constant channel is divided by 1. Without `normalise` means are 0 and deviations 1. Only for a source without a
    tokenizer.
    """

    height: int = 32
    width: int = 32
    channels: int = 1
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    normalise: bool = True
    kind = "image"
    shape = "(B, H, F)"
    dtype = "float32"
    reads_numbers = True
    is_media = True

    @property
    def size(self) -> int:
        """F."""
        return self.width * self.channels

    def sizes(self, name: str) -> dict[str, int]:
        """Return F under the feature's name, and C as `channels`."""
        return {name: self.size, "channels": self.channels}

    @property
    def axes(self) -> tuple[str | int, ...]:
        return (*TOKEN_AXES, self.size)

    def rows(self, value: Any, place: str) -> np.ndarray:
        """Return a picture as H rows of W times C numbers from 0 to 1; DataError if it cannot be read."""
        if is_encoded(value):
            value = _decode(read_bytes(value, place), self.channels, place)
        elif is_pillow(value):
            value = _of_pillow(value, self.channels, place)
        pixels = _checked(value, place)
        if pixels.ndim == 3 and self.channels == 1:
            pixels = np.floor((pixels @ np.array([_RED, _GREEN, _BLUE], float) + 32768) / 65536)
        rows, columns = pixels.shape[:2]
        pixels = np.broadcast_to(pixels.reshape(rows, columns, -1), (rows, columns, self.channels))
        columns_first = pixels.transpose(1, 0, 2).reshape(columns, -1)
        resized = _resize(columns_first, self.width).reshape(self.width, rows, self.channels)
        resized = _resize(resized.transpose(1, 0, 2).reshape(rows, -1), self.height)
        return (resized / 255).astype(np.float32)

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
        deviations[deviations < _CONSTANT] = 1.0
        return replace(self, means=tuple(means.tolist()), deviations=tuple(deviations.tolist()))

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        array = np.zeros((len(docs), longest, self.size), np.float32)
        means, deviations = np.tile(self.means, self.width), np.tile(self.deviations, self.width)
        for rows, doc in zip(array, docs, strict=True):
            if doc.rows is not None:
                rows[: len(doc)] = (doc.rows.astype(np.float64) - means) / deviations
        return array

    def manifest(self) -> dict[str, Any]:
        size = {"height": self.height, "width": self.width, "channels": self.channels}
        return {"kind": self.kind, **size, "means": list(self.means), "deviations": list(self.deviations)}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizers: Mapping[str, Any]) -> Self:
        height, width, channels = (int(manifest[key]) for key in ("height", "width", "channels"))
        means, deviations = (tuple(map(float, manifest[key])) for key in ("means", "deviations"))
        if channels not in (1, 3) or not len(means) == len(deviations) == channels:
            counts = f"{channels} channels, {len(means)} means and {len(deviations)} deviations"
            raise unknown_kind(f"{cls.kind!r} with {counts}")
        return cls(height, width, channels, means, deviations)

    def out_of_bounds(self) -> str:
        if not (1 <= self.height <= LARGEST and 1 <= self.width <= LARGEST):
            return f"image: {self.height} rows of {self.width} pixels are not between 1 and {LARGEST:,}"
        if all(map(math.isfinite, (*self.means, *self.deviations))) and min(self.deviations, default=1.0) > 0:
            return ""
        return "image: means that are not finite, or deviations that are not above 0"

    def example_value(self, draw: random.Random) -> list[list[int]]:
        rows, columns = draw.randint(1, 40), draw.randint(1, 40)
        return [[draw.randint(0, 255) for _ in range(columns)] for _ in range(rows)]


def _decode(data: bytes, channels: int, place: str) -> np.ndarray:
    """Return the pixels of a PNG or JPEG file, (rows, columns) or (rows, columns, 3), uint8."""
    try:
        from PIL import Image as Pillow
    except ImportError as error:
        raise DataError(f"{place} needs Pillow: {install_command('media')}, or give an array of numbers") from error
    try:
        with Pillow.open(io.BytesIO(data), formats=("PNG", "JPEG")) as picture:
            return _of_pillow(picture, channels, place)
    except DataError:
        raise
    except Exception as error:  # for damaged files Pillow's readers raise exceptions of many types
        fix = "give a whole file of one of these formats"
        raise DataError(f"{place} cannot be decoded as PNG or JPEG ({error}); {fix}") from error


def _of_pillow(picture: Any, channels: int, place: str) -> np.ndarray:
    """Return the pixels of a picture of Pillow, which may not be decoded yet."""
    from PIL import ImageOps

    _check_size(picture.height, picture.width, place)
    if picture.mode[0] in "IF":
        raise DataError(f"{place} is a picture with more than 8 bits a channel; convert it to 8 bits")
    picture = ImageOps.exif_transpose(picture)
    picture.info.pop("transparency", None)  # of a palette; Pillow would warn that it is lost
    if picture.mode not in ("1", "L", "LA"):
        picture = picture.convert("RGB")
    if picture.mode != "RGB" or channels == 1:
        picture = picture.convert("L")
    return np.asarray(picture)


def _checked(value: Any, place: str) -> np.ndarray:
    """Return an array of pixels, (rows, columns) or (rows, columns, 3); DataError for any other value."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # rows of several lengths
        array = np.array(None)
    if array.dtype.kind not in "iuf" or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3):
        fix = "give a PNG or JPEG file, or numbers from 0 to 255 as rows of pixels, or of lists of 3"
        raise DataError(f"{place} must be a picture, not {type(value).__name__}; {fix}")
    if not array.size:
        raise DataError(f"{place} is a picture without pixels; leave it out")
    _check_size(array.shape[0], array.shape[1], place)
    if not ((array >= 0) & (array <= 255)).all():
        raise DataError(f"{place} has a pixel that is not between 0 and 255; scale the numbers")
    return array


def _check_size(rows: int, columns: int, place: str) -> None:
    if rows * columns > MOST_PIXELS or max(rows, columns) > MOST_SIDE:
        most = f"at most {MOST_PIXELS:,} are read, and {MOST_SIDE:,} in a row or column"
        raise DataError(f"{place} is a picture of {columns:,} x {rows:,} pixels, and {most}; make it smaller")


def _resize(pixels: np.ndarray, size: int) -> np.ndarray:  # (N, …) -> (size, …)
    """Resize the first axis."""
    if len(pixels) == size:
        return pixels
    return np.stack([weights @ pixels[first : first + len(weights)] for first, weights in _windows(len(pixels), size)])


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
