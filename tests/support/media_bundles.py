"""Bundles that read pictures and sounds, and pictures and sounds in all their forms."""

import base64
import io
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import toy_bundles as toy
from PIL import Image

from seqpipe import load

IMAGE: dict[str, Any] = {
    "kind": "image", "height": 6, "width": 5, "channels": 3, "means": [0.4, 0.5, 0.6], "deviations": [0.2, 0.3, 0.25],
}  # fmt: skip
GREY = IMAGE | {"channels": 1, "means": [0.5], "deviations": [0.25]}
MEL: dict[str, Any] = {
    "kind": "mel", "rate": 16_000, "window": 400, "hop": 160, "fft": 512, "bands": 20,
    "lowest": 0.0, "highest": 8_000.0, "means": [-8.0] * 20, "deviations": [4.0] * 20,
}  # fmt: skip
# Entries that a runtime refuses: a kind, and the changes of its entry.
REFUSED_ENTRIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a million rows": (IMAGE, {"height": 10**6}),
    "a million columns": (GREY, {"width": 10**6}),
    "no row": (IMAGE, {"height": 0}),
    "rows below zero": (IMAGE, {"height": -6}),
    "two channels": (IMAGE, {"channels": 2}),
    "10⁹ channels": (IMAGE, {"channels": 10**9}),
    "a mean less": (IMAGE, {"means": [0.5]}),
    "a mean that overflows": (IMAGE, {"means": [0.4, 0.5, 1e999]}),
    "a deviation of 0": (GREY, {"deviations": [0]}),
    "a deviation below 0": (MEL, {"deviations": [-1.0] * 20}),
    "means that are text": (GREY, {"means": ["nan"]}),
    "no means": (MEL, {"means": [], "deviations": []}),
    "fft of 10⁹": (MEL, {"fft": 10**9}),
    "fft of 0": (MEL, {"fft": 0, "window": 0}),
    "no band": (MEL, {"bands": 0, "means": [], "deviations": []}),
    "10⁹ bands": (MEL, {"bands": 10**9}),
    "a hop of 0": (MEL, {"hop": 0}),
    "a hop of 1": (MEL, {"hop": 1}),
    "a window beyond the fft": (MEL, {"window": 600}),
    "a rate of 2³¹": (MEL, {"rate": 2**31}),
    "a rate of 0": (MEL, {"rate": 0}),
    "a band beyond half the rate": (MEL, {"highest": 9_000.0}),
    "bands from above": (MEL, {"lowest": 4_000.0, "highest": 100.0}),
    "a lowest that overflows": (MEL, {"lowest": -1e999}),
}


def write_media_bundle(path: Path, entry: Mapping[str, Any], golden: Any = ()) -> Path:
    """Write a bundle that answers with three numbers, a linear function of the mean row; `golden` are records."""
    features = entry["width"] * entry["channels"] if "width" in entry else entry["bands"]
    nodes = [
        *toy.masked_sum("rows"),
        toy.node("ReduceSum", ["weight", "axis_1"], ["count"], keepdims=0),
        toy.node("Div", ["sum", "count"], ["mean"]),
        toy.node("MatMul", ["mean", "matrix"], ["vector"]),
    ]
    matrix = np.random.default_rng(1).normal(0, 1, (features, 3)).astype(np.float32)
    inputs: toy.Values = {"rows": (toy.FLOAT, [*toy.AXES, features]), "mask": (toy.BOOL, toy.AXES)}
    model = toy.onnx_model(
        nodes, inputs, {"vector": (toy.FLOAT, ["batch_size", 3])}, {**toy.SUM_CONSTANTS, "matrix": matrix}
    )
    rows = {**entry, "axes": [*toy.AXES, features], "dtype": "float32"}
    answer = {"kind": "vector", "target": None, "self_supervised": True}
    manifest = toy.toy_manifest(
        "media", "vector", {"mask": toy.MASK, "rows": rows}, version=4, field="it", answer=answer
    )
    files = {"model.onnx": model}
    toy.write_bundle(path, files, manifest)
    if golden:
        opened = load(path, "cpu", threads=1)
        manifest["golden"] = [{"record": {"it": value}, "answer": opened({"it": value})} for value in golden]
        toy.write_bundle(path, files, manifest)
    return path


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def image_file(pixels: np.ndarray, form: str = "PNG", mode: str | None = None, **options: Any) -> bytes:
    """A picture as a file of this form."""
    file, image = io.BytesIO(), Image.fromarray(pixels.astype(np.uint8))
    (image.convert(mode) if mode else image).save(file, form, **options)
    return file.getvalue()


def wav(
    samples: Any, rate: int = 16_000, bits: int = 16, channels: int = 1, kind: int = 1, lies: int = 0, stated: int = 0
) -> bytes:
    """A WAV of numbers from -1 to 1; `lies` is added to the length of its data, `stated` to that of the file."""
    samples = np.asarray(samples, np.float64)
    if kind == 3:
        content = samples.astype("<f4").tobytes()
    elif bits == 24:
        content = (samples * (2**23 - 1)).astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    elif bits == 8:
        content = (samples * 127 + 128).astype(np.uint8).tobytes()
    else:
        content = (samples * (2 ** (bits - 1) - 1)).astype(f"<i{bits // 8}").tobytes()
    step = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, rate % 2**32, rate * step % 2**32, step, bits)
    length = struct.pack("<I", len(content) + lies)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + length + content
    return b"RIFF" + struct.pack("<I", len(body) + stated) + body


def png(width: int, height: int, content: bytes = b"") -> bytes:
    """A grey PNG of this size, whose compressed data need not be of that size."""
    header = struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)
    parts = {b"IHDR": header, b"IDAT": zlib.compress(content), b"IEND": b""}
    chunks = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts.items())
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
