"""Pictures: resized as by Pillow, read in every form, refused before they cost memory."""

import base64
import io
import random
import struct
import sys
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from seqpipe.errors import DataError
from seqpipe.features.kinds.image import Image
from seqpipe.features.kinds.mel import Mel
from seqpipe.features.kinds.registry import pixels
from seqpipe.features.media import json_value, read_bytes
from seqpipe.features.sources import NumericSource

RANDOM = np.random.default_rng(1)
COLOURS = RANDOM.integers(0, 256, (23, 41, 3)).astype(np.uint8)


def encoded(picture: Any, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    (Pillow.fromarray(picture) if isinstance(picture, np.ndarray) else picture).save(file, form, **options)
    return file.getvalue()


def header(width: int, height: int) -> bytes:
    """A PNG of this size that has no pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(32, 32), (7, 64), (1, 1), (100, 9)])
@pytest.mark.parametrize("before", [(8, 8), (28, 28), (5, 90), (300, 17), (1, 1)])
def test_a_picture_is_resized_as_by_pillow(before: tuple[int, int], size: tuple[int, int], channels: int) -> None:
    pixels = RANDOM.integers(0, 256, before if channels == 1 else (*before, 3)).astype(np.uint8)
    rows = Image(*size, channels).rows(pixels, "p").reshape(*size, channels)
    for c in range(channels):
        plane = pixels.reshape(*before, channels)[:, :, c]
        picture = Pillow.fromarray(plane.astype(np.float32) / 255)
        expected = np.asarray(picture.resize(size[::-1], Pillow.Resampling.BILINEAR))
        np.testing.assert_allclose(rows[:, :, c], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_every_form_of_a_picture_is_the_same_picture(tmp_path: Path, channels: int) -> None:
    data, feature = encoded(COLOURS), Image(9, 13, channels)
    (tmp_path / "a.png").write_bytes(data)
    text, picture = base64.b64encode(data).decode(), Pillow.fromarray(COLOURS)
    forms = [COLOURS.tolist(), data, tmp_path / "a.png", text, f"data:image/png;base64,{text}", picture]
    expected = feature.rows(COLOURS, "p")
    for form in [*forms, *map(json_value, forms)]:
        assert np.array_equal(feature.rows(form, "p"), expected)
    assert np.abs(feature.rows(encoded(COLOURS, "JPEG", quality=100), "p") - expected).max() < 0.1


def test_orientation_and_palette_are_applied() -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 6  # the picture is to be turned to the right
    turned = Image(41, 23, 3).rows(encoded(COLOURS, exif=exif), "p")
    assert np.array_equal(turned, Image(41, 23, 3).rows(np.rot90(COLOURS, -1), "p"))
    palette = Pillow.fromarray(COLOURS).quantize(8)
    data = encoded(palette, transparency=bytes(8))
    for channels, mode in ((1, "L"), (3, "RGB")):
        expected = Image(23, 41, channels).rows(np.asarray(palette.convert("RGB").convert(mode)), "p")
        assert np.array_equal(Image(23, 41, channels).rows(data, "p"), expected)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (header(100_000, 100_000), "cannot be decoded as PNG or JPEG|of 100,000 x 100,000 pixels"),
        (header(10_000, 5_001), "of 10,000 x 5,001 pixels, and at most 50,000,000 are read"),
        (header(70_000, 1), "of 70,000 x 1 pixels"),
        (header(5, 5), "cannot be decoded as PNG or JPEG"),
        (encoded(COLOURS)[:-40], "cannot be decoded"),
        (b"GIF89a", "cannot be decoded as PNG or JPEG"),
        (encoded(np.ones((2, 2), np.uint16)), "more than 8 bits a channel"),
        ("seven.png", "is a text that is not base64 .* in Python a pathlib.Path"),
        (Path("nowhere.png"), "nowhere.png: there is no such file; correct the path"),
        (Path(), "this is not a file"),
        ([[1, 2], [3]], "must be a picture, not list; give a PNG or JPEG file, or numbers"),
        ([[True]], "must be a picture"),
        ([[[1, 2]]], "must be a picture"),
        (None, "not NoneType"),
        ([[]], "without pixels"),
        ([[256]], "a pixel that is not between 0 and 255"),
        ([[float("nan")]], "a pixel that is not between 0 and 255"),
    ],
    ids=str,
)
def test_other_values_than_pictures_are_refused_with_their_place_and_a_fix(value: Any, words: str) -> None:
    source = NumericSource({"image": Image(4, 4)}, "p")
    with pytest.raises(DataError, match=rf"^f:7: field 'p' .*({words})"):
        source.docs([{"p": value, "where": "f:7"}])


def test_what_is_transparent_is_composed_on_a_stated_background() -> None:
    alpha = RANDOM.integers(0, 256, (23, 41, 1)).astype(np.uint8)
    clear = np.concatenate([COLOURS, alpha], 2)
    grey = np.concatenate([COLOURS[..., :1], alpha], 2)
    indexed = Pillow.fromarray(COLOURS).quantize(8)
    palette = np.array(indexed.getpalette()[:24]).reshape(8, 3)[np.asarray(indexed)]
    opacity = np.arange(8, dtype=np.uint8) * 30
    cases = [
        (encoded(clear), COLOURS, alpha),
        (encoded(grey), COLOURS[..., :1].repeat(3, 2), alpha),
        (encoded(indexed, transparency=bytes(opacity)), palette, opacity[np.asarray(indexed)][..., None]),
        (encoded(COLOURS), COLOURS, np.full((23, 41, 1), 255)),
    ]
    for data, colours, a in cases:
        for background in (0, 77, 255):
            composed = (colours * a.astype(int) + background * (255 - a.astype(int)) + 127) // 255
            for channels in (1, 3):
                image, plain = Image(8, 9, channels, background=background), Image(8, 9, channels)
                assert np.array_equal(image.rows(data, "f"), plain.rows(composed, "f"))
                assert np.array_equal(plain.rows(data, "f"), plain.rows(colours.astype(np.uint8), "f"))


def test_the_range_of_an_array_is_stated_or_doubted() -> None:
    fractions, draw = COLOURS / 255, random.Random(1)
    for image in (Image(background=255), Image(background=255, maximum=1)):
        for value in (*(image.example_value(draw) for _ in range(300)), image.value_of([[0.2, -20.0], [0.0, 7.0]])):
            assert image.rows(value, "f").max() <= 1
    assert np.array_equal(Image(background=255, maximum=1).rows(fractions, "f"), Image().rows(COLOURS, "f"))
    for seen in (COLOURS.astype(float), np.zeros((3, 3)), np.eye(3, dtype=int)):
        assert np.array_equal(Image(background=255).rows(seen, "f"), Image().rows(seen, "f"))
    with pytest.raises(DataError, match=r"^f has fractions from 0 to 1 only, .*`maximum: 1` of the embedding `image`"):
        Image(background=255).rows(fractions.tolist(), "f")
    with pytest.raises(DataError, match="a pixel that is not between 0 and 1;"):
        Image(background=255, maximum=1).rows(COLOURS, "f")


def test_the_size_of_a_picture_is_read_from_its_header_and_limited() -> None:
    large = np.zeros((900, 1200, 3), np.uint8)
    spread = bytes([0xFF, 0xD8]) + b"\xff\xe1\x10\x02" + bytes(4096) + b"\xff" + encoded(large, "JPEG")[2:]
    forms = [encoded(large), encoded(large, "JPEG"), encoded(large, "JPEG", progressive=True), spread]
    forms += [Pillow.fromarray(large), large, large[..., 0].tolist()]
    for form in forms:
        assert Image().media_tokens(form, "f") == 1 + 900 * 1200 // 1024
        with pytest.raises(DataError, match="f is a picture of 1,200 x 900 pixels, and at most 1,000,000 are read"):
            Image().limited(10**6, 0).media_tokens(form, "f")
    assert Image().media_tokens(b"no picture", "f") == 1
    hidden = forms[0][:12] + b"tEXt" + forms[0][16:]
    segments = bytes([0xFF, 0xD8]) + b"\xff\xe1\0\2" * 2_000
    for data in (hidden, segments, forms[1][:30], b"\xff\xd8\xff"):
        assert Image().limited(10**6, 0).media_tokens(data, "f") == 1 + 10**6 // 1024
    with pytest.raises(DataError, match=r"at most 1,000,000 are read"):
        Image().limited(10**6, 0).rows(forms[0], "f")


def test_resizing_a_large_picture_costs_less_than_decoding_it() -> None:
    data = encoded(RANDOM.integers(0, 256, (2_000, 2_000)).astype(np.uint8), "JPEG")
    image, cost = Image(), dict[str, float]()
    for name, work in (
        ("decode", lambda: Pillow.open(io.BytesIO(data)).load()),
        ("rows", lambda: image.rows(data, "f")),
    ):
        times = []
        for _ in range(5):
            began = time.process_time()
            work()
            times.append(time.process_time() - began)
        cost[name] = min(times)
    assert cost["rows"] < 3 * cost["decode"]  # which it contains


def test_bytes_are_counted_before_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    for value in (b"12345", "MTIzNDU=", tmp_path / "a"):
        assert read_bytes(value, "p", 5) == b"12345"
        with pytest.raises(DataError, match=r"p has 5 bytes, and at most 4 are read"):
            read_bytes(value, "p", 4)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10**7)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="p has 10,000,000 bytes"):
            read_bytes(tmp_path / "sparse", "p", 10**6)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


def test_without_pillow_arrays_are_read_and_files_name_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(COLOURS)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert Image(4, 4).rows(COLOURS, "p").shape == (4, 4)
    with pytest.raises(DataError, match=r"p needs Pillow: pip install .pillow>=.*, or give an array"):
        Image(4, 4).rows(data, "p")


def test_channels_are_standardised_over_all_pictures() -> None:
    source = NumericSource({"image": Image(5, 4, 3)}, "p")
    docs = source.docs([{"p": COLOURS}, {"p": COLOURS[:9]}, {"p": np.full((2, 2), 7)}])
    feature = source.feature.fit(docs)
    pixels = NumericSource({"image": feature}, "p").collate(docs)["image"].reshape(-1, 3)
    np.testing.assert_allclose(pixels.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(pixels.std(0), 1, atol=1e-5)


def test_rows_of_a_picture_and_of_a_sound_are_drawn_as_bytes() -> None:
    rows = Image(2, 3, 1).rows([[0, 128, 255], [255, 0, 51]], "p")
    assert pixels(Image(2, 3, 1), rows)[..., 0].tolist() == [[0, 128, 255], [255, 0, 51]]
    bands = np.array([[0.0, 1.0], [3.0, 4.0], [2.0, 0.0]])  # three frames, with two bands
    assert pixels(Mel(bands=2), bands)[..., 0].tolist() == [[63, 255, 0], [0, 191, 127]]  # the lower band below
    assert pixels(Image(2, 3, 1), rows[:0]) is None
