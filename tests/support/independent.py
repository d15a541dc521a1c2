"""A second runtime for bundles, written from docs/bundle-format.md alone: it shares no line with seqpipe."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import itertools
import json
import re
import stat
import struct
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from PIL import Image, ImageOps
from tokenizers import PreTokenizedString, Regex, Tokenizer

SEAL = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n}\n\Z')
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
SPECIAL = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
KEYS: dict[str, type | tuple[type, ...]] = {
    "name": str, "files": dict, "field": (str, list, dict), "inputs": dict, "options": dict, "outputs": list,
    "answer": dict, "limits": dict, "golden": list, "reader": dict, "metrics": dict, "parity": dict, "made_with": dict,
}  # fmt: skip
OUTPUTS = {
    "tags": {"tags", "scores", "opens", "closes"},
    "spans": {"tags", "scores", "opens", "closes"},
    "label": {"label", "scores"},
    "labels": {"labels", "scores"},
    "score": {"score"},
    "vector": {"vector"},
    "candidate": {"nearest", "scores", "vector"},
    "span": {"starts", "ends", "scores"},
    "pointers": {"pointers", "scores"},
    "text": {"tokens", "scores"},
    "generation": {"tokens", "scores"},
    "fill-mask": {"tokens", "scores"},
    "span-infilling": {"tokens", "scores"},
    "structured": set(),  # the names of its fields
}
WRITING = ("text", "generation", "fill-mask", "span-infilling")
WHITE = "\u0009-\u000d\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
CLOSERS = "[\"'”’)\\]」』》）]*"
CUT = re.compile(rf"[.!?…]+{CLOSERS}(?=[{WHITE}])|[。！？]+{CLOSERS}|\n[{WHITE}]*\n|\n(?=[^{WHITE}])")
TYPES: dict[str, tuple[type, ...]] = {"size": (int,), "int": (int,), "float": (int, float), "bool": (bool,)}


# The property Default_Ignorable_Code_Point, as Unicode's file of derived properties lists it.
IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)


class RefusedError(Exception):
    """The bundle, the record or the option is refused."""


class Token(NamedTuple):
    id: int
    word: str
    start: int
    end: int
    place: tuple[int, int] | None  # of the word that begins with it
    segment: int = 1


KINDS = ("chars", "ngrams", "sentences", "pieces", "segments", "matrix", "image", "mel", "copy", "column")


class Source:
    """A text of each record: its tokens, and the inputs made of them."""

    targets: Mapping[str, Tokenizer]  # of what is written, by file

    def __init__(
        self,
        field: str | list[str],
        file: bytes,
        entries: Mapping[str, Any],
        limits: Mapping[str, int],
        generates: bool = False,
        raw: bool = False,
    ):
        self.field, self.entries, self.limits, self.generates = field, entries, limits, generates
        self.raw, self.joins = raw, any(entry.get("joins_words") for entry in entries.values())
        self.prefix = json.loads(file)["model"].get("continuing_subword_prefix")
        self.tokenizer = tokenizer(file)
        self.whole_words = json.loads(file)["model"]["type"] == "WordLevel"
        self.splits_words = not self.whole_words and not generates and not raw
        self.sign = self.tokenizer.token_to_id("▁")
        self.forms = re.findall('"type": ?"(NFK?[CD])"', json.dumps(json.loads(file)["normalizer"]))

    def record(self, given: str | Mapping[str, Any]) -> tuple[str, list[Token]]:
        """The text and its tokens."""
        field = self.field
        if isinstance(field, list):
            if len(field) != 2:
                raise RefusedError("neither a text nor a pair")
            return self.pair(*map(self.seen, (given[name] for name in field)))
        record = {field: given} if isinstance(given, str) else given
        presplit = field == "text" and record.get("words") is not None
        if presplit and self.raw:
            record, presplit = {"text": " ".join(record["words"])} | record, False
        if presplit and not (self.generates and isinstance(record.get("text"), str)):
            text = record["text"] if isinstance(record.get("text"), str) else " ".join(record["words"])
            tokens = self.from_words(record["words"], text)
        else:
            text = self.seen(record[field])
            tokens = self.from_text(text)
        if self.limits.get("cut"):
            tokens = ended(tokens[: self.limits["tokens"]])
        if len(tokens) > self.limits["tokens"]:
            raise RefusedError("too long a text")
        return text, tokens

    def seen(self, text: str) -> str:
        """The text; the empty one where nothing of it is seen."""
        return text if self.generates or self.raw else re.sub(rf"\A[{WHITE}{IGNORABLE}]*\Z", "", text)

    def pair(self, first: str, second: str) -> tuple[str, list[Token]]:
        """Two texts as one, and their tokens."""
        text, shift = f"{first}\n{second}", len(first) + 1
        before, behind = self.from_text(first), self.from_text(second)
        limits = self.limits
        if len(before) > limits.get("first_tokens", len(before)):
            raise RefusedError("too long a first text")
        between = Token(3, "\n", shift - 1, shift, (shift - 1, shift))
        moved = [
            Token(i, word, a + shift, b + shift, place and (place[0] + shift, place[1] + shift), 2)
            for i, word, a, b, place, _ in behind
        ]
        tokens = [*before, between, *moved] if before or behind else []
        if len(tokens) > limits["tokens"]:
            raise RefusedError("too long a pair")
        return text, tokens

    def from_text(self, text: str) -> list[Token]:
        text = clean(text)
        made = self.tokenizer.encode(text, add_special_tokens=False)
        if self.raw:
            found = zip(made.ids, made.tokens, made.offsets, strict=True)
            tokens = [Token(i if i > 3 else 1, text[a:b], a, b, (a, b)) for i, _, (a, b) in found]
            for t, (token, written) in enumerate(zip(tokens, made.tokens, strict=True)):
                if self.prefix:
                    inside = len(written) != token.end - token.start
                else:
                    inside = token.start > 0 and " " not in text[token.start - 1 : token.start + 1]
                if self.joins and t and inside and token.id != 1:
                    tokens[t] = token._replace(place=None)
            return ended(tokens) if self.joins else tokens
        if self.splits_words:
            pieces = [*zip(made.ids, self.widened(made.offsets, text), made.word_ids, strict=True)]
            apart: list[list[tuple[int, int, int]]] = []
            for found in visible(pieces, text, self.sign).values():
                if apart and found[0][1] < apart[-1][-1][2]:
                    apart[-1].extend(found)
                else:
                    apart.append(found)
            return [token for found in apart for token in tokens_of(found, text, None)]
        tokens: list[Token] = []
        for i, (a, b) in zip(made.ids, self.widened(made.offsets, text), strict=True):
            if self.forms and self.whole_words and tokens and a < tokens[-1].end:
                a = tokens.pop().start
                i = self.id(text[a:b])
            tokens.append(Token(i if i > 3 else 1, text[a:b], a, b, (a, b)))
        return tokens

    def widened(self, places: Sequence[tuple[int, int]], text: str) -> list[tuple[int, int]]:
        """The places, each with the code points behind it of which nothing is left once they are composed."""
        if not self.forms or self.forms[-1] not in ("NFC", "NFKC"):
            return [*places]
        parts = PreTokenizedString(text)
        parts.normalize(self.tokenizer.normalizer.normalize)
        parts.split(lambda _, part: part.split(Regex(r"[\s\S]"), "isolated"))
        left = {i for _, (a, b), _ in parts.get_splits("original", "char") for i in range(a, b)}
        made = []
        for (a, b), (after, _) in itertools.zip_longest(places, places[1:], fillvalue=(len(text), 0)):
            while b < after and b not in left and not re.fullmatch(f"[{WHITE}]", text[b]):
                b += 1
            made.append((a, b))
        return made

    def from_words(self, words: Iterable[str], text: str) -> list[Token]:
        tokens: list[Token] = []
        places, at = [], 0
        for word in words:
            start = text.find(word, at)
            if start < 0:
                raise RefusedError(f"{word!r} is not in the text")
            at = start + len(word)
            places.append((start, at))
            tokens.append(Token(self.id(clean(word)), clean(word), start, at, (start, at)))
        return self.split(places, clean(text)) if self.splits_words else tokens

    def split(self, places: Sequence[tuple[int, int]], text: str) -> list[Token]:
        """The pieces of words that are given by their places."""
        ends = [0, *(b for _, b in places)][: len(places)]
        gaps = [re.findall(f"[{WHITE}]*$", text[end:a])[0] for end, (a, _) in zip(ends, places, strict=True)]
        begins = [a - len(gap) for gap, (a, _) in zip(gaps, places, strict=True)]
        strings = [text[begin:b] for begin, (_, b) in zip(begins, places, strict=True)]
        made = self.tokenizer.encode(strings, is_pretokenized=True, add_special_tokens=False)
        moved = [(a + begins[word], b + begins[word]) for (a, b), word in zip(made.offsets, made.word_ids, strict=True)]
        pieces = [*zip(made.ids, self.widened(moved, text), made.word_ids, strict=True)]
        found = visible(pieces, text, self.sign)
        words = [found.get(n) or [(1, *place)] for n, place in enumerate(places)]
        return [token for some, place in zip(words, places, strict=True) for token in tokens_of(some, text, place)]

    def id(self, word: str) -> int:
        normal = self.tokenizer.normalizer.normalize_str(word) if self.tokenizer.normalizer else word
        found = None if normal in SPECIAL else self.tokenizer.token_to_id(normal)
        return 1 if found is None else found

    def value(self, record: str | Mapping[str, Any], entry: Mapping[str, Any]) -> int:
        """The place of what stands in a field of the record."""
        given = None if isinstance(record, str) else record.get(entry["field"])
        if given not in entry["values"]:
            raise RefusedError(f"{entry['field']}: {given!r}")
        return list(entry["values"]).index(given)

    def inputs(
        self,
        rows: Sequence[Sequence[Token]],
        texts: Sequence[str],
        records: Sequence[str | Mapping[str, Any]] = (),
    ) -> dict[str, np.ndarray]:
        size = (len(rows), max(1, *map(len, rows)))
        made = {"ids": np.zeros(size, np.int64), "mask": np.zeros(size, np.bool_)}
        for b, tokens in enumerate(rows):
            made["ids"][b, : len(tokens)] = [token.id for token in tokens]
            made["mask"][b, : len(tokens)] = True
        for name, entry in self.entries.items():
            shown, form = rows, entry.get("normalize")
            if form:
                shown = [[t._replace(word=unicodedata.normalize(form, t.word)) for t in row] for row in rows]
            if entry.get("kind") == "chars":
                made[name] = chars(shown, size, entry["longest"], entry["alphabet"])
            elif entry.get("kind") == "ngrams":
                made[name] = ngrams(shown, size, entry)
            elif entry.get("kind") == "sentences":
                made[name] = filled([in_sentences(*one, entry["split"]) for one in zip(rows, texts, strict=True)])
            elif entry.get("kind") == "pieces":
                words = [[[t + 1 for t, token in enumerate(tokens) if token.place]] for tokens in rows]
                made[name] = filled(words)[:, 0]
            elif entry.get("kind") == "segments":
                made[name] = np.zeros(size, np.int64)
                for b, tokens in enumerate(rows):
                    made[name][b, : len(tokens)] = [token.segment for token in tokens]
            elif entry.get("kind") == "column":
                made[name] = np.array([[self.value(record, entry)] for record in records], np.int64)
            elif entry.get("kind") == "copy":
                made[name] = np.zeros(size, np.int64)
                for b, tokens in enumerate(rows):
                    made[name][b, : len(tokens)] = numbered(tokens, self.targets[entry["tokenizer"]], entry["same"])[0]
        return made


class Numbers:
    """Rows of numbers of each record, those of a picture or of a sound."""

    def __init__(self, field: str, entries: Mapping[str, Any]):
        self.field = field
        self.name, self.entry = next((name, entry) for name, entry in entries.items() if "means" in entry)
        times = self.entry.get("width", 1)  # the columns of a picture share the numbers of their channel
        self.means, self.deviations = (np.tile(self.entry[key], times) for key in ("means", "deviations"))

    def rows(self, given: Any) -> Any:
        """The rows, before means and deviations."""
        if self.entry["kind"] != "matrix":
            return {"image": picture, "mel": sound}[self.entry["kind"]](given, self.entry)
        rows = [given] if given and not isinstance(given[0], list) else given
        if any(len(row) != len(self.means) for row in rows):
            raise RefusedError("rows of another width")
        return rows

    def record(self, given: Mapping[str, Any]) -> tuple[str, list[Token]]:
        """A token a row, whose word is its numbers."""
        value = given[self.field] if isinstance(given, Mapping) else given
        return "", [Token(1, struct.pack(f"<{len(row)}f", *row).hex(), 0, 0, None) for row in self.rows(value)]

    def inputs(
        self, rows: Sequence[Sequence[Token]], texts: Sequence[str], records: Sequence[Any]
    ) -> dict[str, np.ndarray]:
        size = (len(rows), max(map(len, rows)))
        made = {self.name: np.zeros((*size, len(self.means)), np.float32), "mask": np.zeros(size, np.bool_)}
        for b, tokens in enumerate(rows):
            for t, token in enumerate(tokens):
                numbers = np.array(struct.unpack(f"<{len(self.means)}f", bytes.fromhex(token.word)))
                made[self.name][b, t], made["mask"][b, t] = (numbers - self.means) / self.deviations, True
        return made


def bounded(entry: Mapping[str, Any], version: int) -> None:
    """Refuses pictures and sounds of sizes that nobody has."""
    numbers = [*entry["means"], *entry["deviations"]]
    if not all(isinstance(number, (int, float)) for number in numbers):
        raise RefusedError("means that are no numbers")
    fits = version == 4 and all(map(np.isfinite, numbers)) and all(number > 0 for number in entry["deviations"])
    if entry["kind"] == "image":
        sizes, count = [("height", 1, 4096), ("width", 1, 4096)], entry["channels"]
        fits = fits and count in (1, 3)
    else:
        sizes, count = [("rate", 1000, 192_000), ("fft", 2, 8192), ("bands", 1, 256)], entry["bands"]
        sizes += [("window", 2, entry["fft"]), ("hop", entry["rate"] / 500, entry["fft"])]
        fits = fits and not entry["fft"] % 2 and 0 <= entry["lowest"] < entry["highest"] <= entry["rate"] / 2
    if not fits or any(not low <= entry[name] <= high for name, low, high in sizes) or len(numbers) != 2 * count:
        raise RefusedError(f"{entry['kind']} out of bounds")


def encoded(text: str) -> bytes:
    """The file in a string of base64."""
    try:
        return base64.b64decode(re.sub(r"\Adata:[^,]*;base64,", "", text).encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise RefusedError("no base64") from error


def array(given: Any, low: float, high: float) -> np.ndarray:
    try:
        numbers = np.array(given, np.float64)
    except (TypeError, ValueError) as error:
        raise RefusedError("no array") from error
    if not numbers.size or not ((numbers >= low) & (numbers <= high)).all():
        raise RefusedError("numbers out of range, or none")
    return numbers


def picture(given: Any, entry: Mapping[str, Any]) -> np.ndarray:
    """The rows of a picture, numbers from 0 to 1."""
    if isinstance(given, str):
        try:
            shown = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded(given)), formats=["PNG", "JPEG"]))
            if shown.mode[0] in "IF":
                raise RefusedError("more than 8 bits")
            is_grey = shown.mode in ("1", "L", "LA")
            pixels = np.asarray(shown.convert("L" if is_grey else "RGB"), np.float64)
        except (OSError, SyntaxError, ValueError) as error:
            raise RefusedError("no picture") from error
    else:
        pixels = array(given, 0, 255)
    if pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)):
        raise RefusedError("no rows of pixels")
    if pixels.ndim == 3 and entry["channels"] == 1:
        pixels = (pixels @ [19595, 38470, 7471] + 32768) // 65536
    if pixels.ndim == 2:
        pixels = np.stack([pixels] * entry["channels"], 2)
    rows, columns = (resizing(n, m) for n, m in zip(pixels.shape, (entry["height"], entry["width"]), strict=False))
    return np.einsum("yi,xj,ijc->yxc", rows, columns, pixels / 255, optimize=True).reshape(entry["height"], -1)


def resizing(n: int, m: int) -> np.ndarray:
    """The weights (m, n) of n numbers for each of m."""
    scale = n / m
    distances = np.arange(n) + 0.5 - (np.arange(m)[:, None] + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(distances) / max(1, scale))
    return weights / weights.sum(1, keepdims=True)


def sound(given: Any, entry: Mapping[str, Any]) -> np.ndarray:
    """The spectrum of a sound: the logarithm of its mel bands, a row for each frame."""
    samples = wav(encoded(given), entry["rate"]) if isinstance(given, str) else array(given, -8, 8)
    if samples.ndim != 1:
        raise RefusedError("no list of samples")
    window, fft = entry["window"], entry["fft"]
    hann = np.zeros(fft)
    hann[(fft - window) // 2 :][:window] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    padded = np.concatenate([np.zeros(fft // 2), samples, np.zeros(fft // 2)])
    starts = range(0, len(samples) + 1, entry["hop"])
    power = np.array([np.abs(np.fft.rfft(padded[start : start + fft] * hann)) ** 2 for start in starts])
    return np.log(np.maximum(power @ bands(entry), 1e-10))


def wav(data: bytes, wanted: int) -> np.ndarray:
    """The samples of a WAV at a rate."""
    if data[:4] + data[8:12] != b"RIFFWAVE":
        raise RefusedError("no WAV")
    form, at, stated = b"", 12, [8 + int.from_bytes(data[4:8], "little")]
    while True:
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        stated.append(at + 8 + size)
        if max(stated) > len(data):
            raise RefusedError("a WAV that is shorter than it states")
        content, at = data[at + 8 : at + 8 + size], at + 8 + size + size % 2
        if name == b"data":
            break
        form = content if name == b"fmt " else form
    if len(form) < 16:
        raise RefusedError("no format")
    kind, channels, rate, _, step, bits = struct.unpack("<HHIIHH", form[:16])
    kind = int.from_bytes(form[24:26], "little") if kind == 0xFFFE else kind
    if (kind, bits) not in ((1, 8), (1, 16), (1, 24), (1, 32), (3, 32)) or not 1000 <= rate <= 192_000:
        raise RefusedError("a WAV of another format")
    if not content or not channels or step != channels * bits // 8 or len(content) % step:
        raise RefusedError("no whole samples")
    width = bits // 8
    if kind == 3:
        numbers = np.array([number for (number,) in struct.iter_unpack("<f", content)])
    else:
        pieces = [content[i : i + width] for i in range(0, len(content), width)]
        whole = [int.from_bytes(piece, "little", signed=bits > 8) - 128 * (bits == 8) for piece in pieces]
        numbers = np.array(whole) / 2 ** (bits - 1)
    return resampled(array(numbers.reshape(-1, channels).mean(1), -8, 8), rate, wanted)


def resampled(x: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    if rate == wanted:
        return x
    c, made = 0.95 * min(1, wanted / rate), np.zeros(-(-len(x) * wanted // rate))
    for m in range(len(made)):
        center = m * rate / wanted
        k = np.arange(max(0, int(center - 16 / c)), min(len(x), int(center + 16 / c) + 2))
        v = c * (k - center)
        made[m] = x[k] @ (c * np.sinc(v) * np.cos(np.pi * v / 32) ** 2 * (np.abs(v) < 16))
    return made


def bands(entry: Mapping[str, Any]) -> np.ndarray:
    """The weights (frequencies, bands) of Slaney's bands."""
    ends = [mel(entry[name]) for name in ("lowest", "highest")]
    h = [hertz(point) for point in np.linspace(*ends, entry["bands"] + 2)]
    f = np.arange(entry["fft"] // 2 + 1) * entry["rate"] / entry["fft"]
    made = [
        np.maximum(0, np.minimum((f - low) / (middle - low), (high - f) / (high - middle))) * 2 / (high - low)
        for low, middle, high in zip(h, h[1:], h[2:], strict=False)
    ]
    return np.stack(made, 1)


def mel(f: float) -> float:
    return 3 * f / 200 if f < 1000 else 15 + 27 * np.log(f / 1000) / np.log(6.4)


def hertz(point: float) -> float:
    return 200 * point / 3 if point < 15 else 1000 * 6.4 ** ((point - 15) / 27)


class Bundle:
    """An open bundle: `Bundle(path)("a text", n_best=3)`."""

    def __init__(self, path: Path):
        self.manifest, files = opened(path)
        answer = self.manifest["answer"]
        joint = answer["kind"] == "joint"
        self.parts = {f"{head}.": part for head, part in answer["parts"].items()} if joint else {"": answer}
        for part in self.parts.values():
            if part["kind"] not in OUTPUTS:
                raise RefusedError(f"answer kind {part['kind']!r}")
            for field in part.get("fields", []) if part["kind"] == "structured" else []:
                if field["per"] not in ("text", "word", "pair"):
                    raise RefusedError(f"a field of each {field['per']}")
                if field["type"] not in ("label", "position", "number", "span"):
                    raise RefusedError(f"a field of the type {field['type']}")
        self.generates = answer["kind"] == "generation"
        self.raw = bool(answer.get("every_token")) and answer["kind"] not in WRITING
        self.cache = self.manifest.get("cache", [])
        for entry in self.manifest["inputs"].values():
            if entry.get("kind", "chars") not in KINDS:
                raise RefusedError(f"input kind {entry['kind']!r}")
            if entry.get("kind") == "ngrams":
                shortest, longest = entry["chars"] or (1, 1)
                if not 0 <= entry["words"] <= 10 or not 1 <= shortest <= longest <= 20:
                    raise RefusedError("lengths of n-grams")
                unpacked(entry["hashes"])
            if entry.get("kind") in ("image", "mel"):
                bounded(entry, self.manifest["version"])
            if entry.get("split", "lines") not in ("lines", "punctuation"):
                raise RefusedError(f"split {entry['split']!r}")
        field, entries = self.manifest["field"], self.manifest["inputs"]
        fields = {f"{name}.": one for name, one in field.items()} if isinstance(field, dict) else {"": field}
        self.sources: dict[str, Any] = {}
        for before, one in fields.items():
            own = {name[len(before) :]: entry for name, entry in entries.items() if name.startswith(before)}
            file = f"tokenizer.{before}json"
            limits = self.manifest["limits"]
            more = limits, self.generates, self.raw
            made = Source(one, files[file], own, *more) if "ids" in own else Numbers(one, own)
            self.sources[before] = made
        writing = [before for before, part in self.parts.items() if part["kind"] in WRITING]
        named = {before: f"target_tokenizer.{before}json" if before else "target_tokenizer.json" for before in writing}
        self.targets = {before: tokenizer(files[name]) for before, name in named.items()}
        for source in self.sources.values():
            source.targets = {named[before]: target for before, target in self.targets.items()}
        self.session = session(files["model.onnx"])
        inputs = {one.name for one in self.session.get_inputs() + self.session.get_overridable_initializers()}
        self.outputs = [one.name for one in self.session.get_outputs()]
        past = {entry["input"] for entry in self.cache}
        if inputs != {*self.manifest["inputs"], *self.manifest["options"], *past}:
            raise RefusedError("the graph has other inputs")
        for before, part in self.parts.items():
            fields = part["fields"] if part["kind"] == "structured" else []
            names = OUTPUTS[part["kind"]] | {field["name"] for field in fields}
            if not {before + name for name in names} <= set(self.outputs):
                raise RefusedError("the graph lacks an output")
        if not {entry["output"] for entry in self.cache} <= set(self.outputs):
            raise RefusedError("the graph lacks an output of the cache")

    def __call__(self, record: str | Mapping[str, Any], **options: Any) -> Any:
        return self.batch([record], **options)[0]

    def batch(self, records: Sequence[str | Mapping[str, Any]], **options: Any) -> list[Any]:
        """Answers, all from one run of the graph."""
        given = [[source.record(record) for source in self.sources.values()] for record in records]
        if any(sum(len(tokens) for _, tokens in parts) > self.manifest["limits"]["tokens"] for parts in given):
            raise RefusedError("too long a record")
        whole = [all(tokens for _, tokens in parts) for parts in given]
        always = self.generates or (
            self.raw and self.manifest["answer"]["kind"] in ("label", "labels", "score", "vector")
        )
        full = [i for i, has_tokens in enumerate(whole) if always or has_tokens]
        if self.generates and not self.manifest["answer"]["adds_bos"] and not all(whole):
            raise RefusedError("an empty prompt")
        words = [[token.word for _, tokens in parts for token in tokens] for parts in given]
        drawn = {name: one for name, one in options.items() if name.rpartition(".")[2] == "seed"}
        known = self.manifest["options"]
        named = {name: listed(name, options[name]) for name in options if known.get(name, {}).get("type") in TEXTS}
        feeds = option_inputs(known, {k: v for k, v in options.items() if k not in drawn and k not in named})
        self.stops = [text for name, texts in named.items() if known[name]["type"] == "texts" for text in texts]
        for name, texts in named.items():
            before = name[: len(name) - len(name.rpartition(".")[2])]
            if known[name]["type"] == "texts" and texts and not options.get(f"{before}min_length"):
                pieces, wanted = self.pieces(before), [text.encode() for text in texts]
                feeds[name] = np.array(
                    [[i for i, piece in enumerate(pieces) if any(w in piece for w in wanted)]], np.int64
                )
            if known[name]["type"] == "automaton" and texts:
                feeds[name] = filled_arcs([self.arcs(before, texts, *given[i][0]) for i in full])
            if known[name]["type"] == "trie" and name in options:
                feeds[name] = self.trie(before, texts, options)
        for before, target in self.targets.items():
            for name in ("prefix",):
                ids = feeds.get(f"{before}{name}", np.zeros(0)).flatten().tolist()
                if any(one in (0, 2, 3) or not 0 <= one < target.get_vocab_size() for one in ids):
                    raise RefusedError(name)
        for name in options:
            before, _, last = name.rpartition(".")
            before += "." * bool(before)
            drawing = last in ("temperature", "top_k", "top_p") and f"{before}uniform" in known
            if drawing and f"{before}seed" not in drawn:
                if options.get(f"{before}temperature") != 0:
                    raise RefusedError(name)
                drawn[f"{before}seed"] = 0
        for name, seed in drawn.items():
            before = name[: -len("seed")]
            if known.get(f"{before}uniform") is None or type(seed) is not int or seed < 0:
                raise RefusedError(name)
            longest = max((len(words[i]) for i in full), default=0) + 1
            sizes = [self.size(f"{before}{one}", feeds, n) for one, n in (("beams", 1), ("max_length", longest))]
            feeds[f"{before}uniform"] = uniform(seed, [words[i] for i in full], *sizes)
        several = {before: len(feeds.get(f"{before}n_best", ())) > 1 for before in self.parts}
        empty = {before: self.empty(part, several[before]) for before, part in self.parts.items()}
        found: list[Any] = [joined(empty) for _ in given]
        if full:
            for number, (before, source) in enumerate(self.sources.items()):
                texts, rows = zip(*(given[i][number] for i in full), strict=True)
                asked = [records[i] for i in full]
                feeds |= {before + name: array for name, array in source.inputs(rows, texts, asked).items()}
            out = dict(zip(self.outputs, self.session.run(None, feeds), strict=True))
            for b, i in enumerate(full):
                each = {before: self.read(before, out, b, *given[i][0]) for before in self.parts}
                each = {before: self.warned(before, one, given[i]) for before, one in each.items()}
                found[i] = joined(each)
        return found

    def pieces(self, before: str) -> list[bytes]:
        target = self.targets[before]
        return [piece_bytes(target, target.id_to_token(i)) if i > 3 else b"" for i in range(target.get_vocab_size())]

    def trie(self, before: str, texts: Sequence[str], options: Mapping[str, Any]) -> np.ndarray:
        """The arcs of the beginnings of allowed texts, by ids that are the beginnings themselves, numbered."""
        beside = ("stop", "forbidden", "prefix", "min_length", "no_repeat_ngram_size")
        if not texts or any(options.get(f"{before}{name}") for name in beside):
            raise RefusedError(f"{before}allowed")
        whole = [tuple(self.targets[before].encode(text, add_special_tokens=False).ids) for text in texts]
        if any(1 in ids for ids in whole):
            raise RefusedError(f"{before}allowed")
        beginnings = sorted({ids[:n] for ids in whole for n in range(len(ids) + 1)}, key=len)
        number = {ids: i for i, ids in enumerate(beginnings)}
        arcs = [(number[ids[:-1]], ids[-1], number[ids]) for ids in beginnings[1:]]
        return np.array([[(0, 0, 0), *arcs, *((number[ids], 3, 0) for ids in set(whole))]], np.int64)

    def arcs(self, before: str, texts: Sequence[str], text: str, tokens: Sequence[Token]) -> list[tuple[int, int, int]]:
        """Arcs of every state, by which none of the texts is written."""
        target, copies = self.targets[before], self.parts[before].get("copies")
        pieces = self.pieces(before)
        pieces += [piece_bytes(target, word) for word in numbered(tokens, target, copies["same"])[1]] if copies else []
        wanted = [one.encode() for one in texts]
        states = sorted({one[:i] for one in wanted for i in range(len(one))}, key=len)

        def state(written: bytes) -> int:
            return max(i for i, one in enumerate(states) if written.endswith(one))

        begin = clean(self.prompt(text, tokens)[0]).encode() if self.generates else b""
        made = [(state(begin), 0, 0), *([(-1, 1, -1)] if "[UNK]" in texts else [])]
        for number, one in enumerate(states):
            for i, piece in enumerate(pieces):
                if piece:
                    whole = one + piece
                    made.append((number, i, -1 if any(text in whole for text in wanted) else state(whole)))
        return made

    def warned(self, before: str, answer: Any, parts: Sequence[tuple[str, Sequence[Token]]]) -> Any:
        """The answer, with a warning if the record is longer than those of training."""
        trained, n = self.manifest["limits"].get("trained"), sum(len(tokens) for _, tokens in parts)
        if trained is None or n <= trained or self.parts[before]["kind"] not in ("text", "span-infilling", "pointers"):
            return answer
        warning = {"warning": f"longer than any input in training ({n:,} tokens; at most {trained:,} in training)"}
        return [one | warning for one in answer] if isinstance(answer, list) else answer | warning

    def size(self, name: str, feeds: Mapping[str, np.ndarray], otherwise: int) -> int:
        if name in feeds:
            return len(feeds[name])
        default: int = self.manifest["options"].get(name, {"default": otherwise})["default"]
        return default

    def read(self, before: str, named: Mapping[str, np.ndarray], b: int, text: str, tokens: Sequence[Token]) -> Any:
        """The answer of row b, of the head whose names begin so."""
        answer, out = self.parts[before], {n[len(before) :]: a for n, a in named.items() if n.startswith(before)}
        kind = answer["kind"]
        if kind == "label":
            best = int(out["label"][b])
            return {"label": answer["labels"][best], "score": score(out["scores"][b, best])}
        if kind == "labels":
            best_first = sorted(np.flatnonzero(out["labels"][b]), key=lambda i: -score(out["scores"][b, i]))
            return [{"label": answer["labels"][i], "score": score(out["scores"][b, i])} for i in best_first]
        if kind == "score":
            return {"score": float(f"{out['score'][b]:.6e}")}
        if kind == "vector":
            return {"vector": [float(f"{one:.6e}") for one in out["vector"][b]]}
        if kind == "candidate":
            found = [
                {**candidate(answer["candidates"], number), "score": round(float(np.clip(cosine, -1, 1)), 6)}
                for number, cosine in zip(out["nearest"][b].tolist(), out["scores"][b], strict=True)
                if number >= 0
            ]
            nothing = {**dict.fromkeys(candidate(answer["candidates"], 0)), "score": 0.0}
            return {**(found[0] if found else nothing), "nearest": found}
        if kind == "span":
            found = [
                stretch(text, tokens, int(first), int(last), score(np.exp(log)))
                for first, last, log in zip(out["starts"][b], out["ends"][b], out["scores"][b], strict=True)
                if log > -1e8
            ]
            return found if len(out["scores"][b]) > 1 else found[0]
        if kind == "pointers":
            found = [
                pointed(answer, text, tokens, row, score(np.exp(log)))
                for row, log in zip(out["pointers"][b].tolist(), out["scores"][b], strict=True)
                if log > -1e8
            ]
            return found if len(out["scores"][b]) > 1 else found[0]
        if kind == "structured":
            return structured(answer["fields"], {name: array[b] for name, array in out.items()}, text, tokens)
        if kind == "generation":
            return self.continued(self.targets[before], out, b, *self.prompt(text, tokens))
        if kind == "fill-mask":
            found = [
                fill(answer["token"], self.targets[before], text, tokens, row, score(np.exp(log)))
                for row, log in zip(out["tokens"][b].tolist(), out["scores"][b], strict=True)
                if log > -1e8
            ]
            return found if len(out["scores"][b]) > 1 else found[0]
        if kind in ("text", "span-infilling"):
            copies = answer.get("copies")
            new = numbered(tokens, self.targets[before], copies["same"])[1] if copies else []
            return self.written(self.targets[before], out, b, new)
        if "paths" in out and out["paths"].shape[1] > 1:
            logs = zip(out["paths"][b], out["path_scores"][b], strict=True)
            return [
                {kind: items(answer, text, tokens, path, None, b), "score": score(np.exp(log))}
                for path, log in logs
                if log > -1e8
            ]
        return items(answer, text, tokens, out["tags"][b], out, b)

    def written(self, target: Tokenizer, out: Mapping[str, np.ndarray], b: int, new: Sequence[str]) -> Any:
        made, V = [], target.get_vocab_size(with_added_tokens=True)
        for tokens, log in zip(out["tokens"][b].tolist(), out["scores"][b], strict=True):
            before = tokens[: tokens.index(3)] if 3 in tokens else tokens
            kept = [token for token in before if token > 3]
            text = target.decode([token for token in kept if token < V], skip_special_tokens=False)
            if any(token >= V for token in kept):
                strings = [new[token - V] if token >= V else target.id_to_token(token) for token in kept]
                text = target.decoder.decode(strings) if target.decoder else " ".join(strings)
            text = text if 3 in tokens else untorn(target, kept, text)
            if log > -1e8 or len(out["scores"][b]) == 1:
                made.append({"generated_text": text, "score": score(np.exp(log))})
        return made if len(out["scores"][b]) > 1 else made[0]

    def prompt(self, text: str, tokens: Sequence[Token]) -> tuple[str, list[int]]:
        """The text that is continued, of a pair the second, and its ids."""
        if not isinstance(self.manifest["field"], list):
            return text, [token.id for token in tokens]
        begin = next((after.start for token, after in pairwise(tokens) if after.segment > token.segment), len(text))
        return text[begin:], [token.id for token in tokens if token.segment == 2]

    def continued(self, target: Tokenizer, out: Mapping[str, np.ndarray], b: int, prompt: str, given: list[int]) -> Any:
        made = []
        for tokens, log in zip(out["tokens"][b].tolist(), out["scores"][b], strict=True):
            kept = [token for token in (tokens[: tokens.index(3)] if 3 in tokens else tokens) if token > 3]
            before, whole, alone = (
                target.decode(ids, skip_special_tokens=False) for ids in (given, [*given, *kept], kept)
            )
            text = whole[len(before) :] if whole.startswith(before) else alone
            text = text if 3 in tokens else untorn(target, kept, text)
            text = text[: min([i for i in map(text.find, self.stops) if i >= 0], default=len(text))]
            if log > -1e8 or len(out["scores"][b]) == 1:
                made.append({"generated_text": prompt + text, "score": score(np.exp(log))})
        return made if len(out["scores"][b]) > 1 else made[0]

    def empty(self, part: Mapping[str, Any], several: bool) -> Any:
        kind = part["kind"]
        if kind == "pointers":
            none = {"pointers": [], "score": 1.0, **({"words": []} if "axis" in part else {})}
            return [none] if several else none
        if kind in ("score", "vector"):
            return {kind: None}
        if kind == "label":
            return {"label": None, "score": 0.0}
        if kind == "candidate":
            return {**dict.fromkeys(candidate(part["candidates"], 0)), "score": 0.0, "nearest": []}
        if kind == "structured":
            fields = part["fields"]
            nothing = {"words": []} if has_words(fields) else {}
            nothing |= {f["name"]: [] if f["per"] == "pair" else None for f in fields if f["per"] != "word"}
            return [nothing] if several else nothing
        if kind in ("text", "span-infilling", "fill-mask", "span"):
            nothing = {"generated_text": "", "score": 1.0, **({"words": []} if kind == "fill-mask" else {})}
            nothing = {"answer": "", "score": 1.0, "start": 0, "end": 0} if kind == "span" else nothing
            return [nothing] if several else nothing
        return [{kind: [], "score": 1.0}] if several else []

    def in_pieces(self, record: str | Mapping[str, Any], sizes: Sequence[int]) -> list[int]:
        """The tokens that continue a prompt, by as many runs of the graph as there are sizes, with the cache."""
        (text, tokens), written = self.sources[""].record(record), list[int]()
        feeds = self.sources[""].inputs([tokens], [text], [record])
        for size in sizes:
            named = dict(
                zip(
                    self.outputs, self.session.run(None, {**feeds, "max_length": np.zeros(size, np.int64)}), strict=True
                )
            )
            found = [token for token in named["tokens"][0, 0].tolist() if token]
            written += found
            if len(found) < size or found[-1] == 3:
                break
            feeds |= {"ids": np.array([found[-1:]], np.int64), "mask": np.ones((1, 1), np.bool_)}
            feeds |= {entry["input"]: named[entry["output"]] for entry in self.cache}
        return written

    def document(self, text: str) -> list[dict[str, Any]]:
        """Answers of the sentences, offsets into the whole text."""
        return [
            {**item, "start": item["start"] + a, "end": item["end"] + a}
            for a, b in sentences(text)
            for item in self(text[a:b])
        ]

    def wrong(self) -> list[int]:
        """Numbers of the golden examples that this machine answers otherwise."""
        return [
            i
            for i, example in enumerate(self.manifest["golden"])
            if not same(self(example["record"], **example.get("options", {})), example["answer"])
        ]


def numbered(tokens: Sequence[Token], target: Tokenizer, same: bool) -> tuple[list[int], list[str]]:
    """Each token as a word that may be written, and the new words."""
    numbers, new = [], list[str]()
    for token in tokens:
        found = token.id if same else None
        if not same:
            word = target.normalizer.normalize_str(token.word) if target.normalizer else token.word
            found = None if word in SPECIAL else target.token_to_id(word)
        if found is None or found <= 3:
            if token.word not in new:
                new.append(token.word)
            found = target.get_vocab_size(with_added_tokens=True) + new.index(token.word)
        numbers.append(found)
    return numbers, new


def pointed(answer: Mapping[str, Any], text: str, tokens: Sequence[Token], row: list[int], p: float) -> dict[str, Any]:
    """Positions up to the first -1, and of a text the words or tokens there."""
    positions = row[: row.index(-1)] if -1 in row else row
    made: dict[str, Any] = {"pointers": positions, "score": p}
    if "axis" in answer:
        every = [(token.start, token.end) for token in tokens]
        words = [token.place for token in tokens if token.place]
        places = words if answer["axis"] == "word_count" else every
        made["words"] = [text[places[i][0] : places[i][1]] for i in positions]
    return made


def has_words(fields: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an answer of these fields lists the words."""
    return any(field["per"] != "text" or field["type"] in ("position", "span") for field in fields)


def candidate(columns: Mapping[str, Sequence[Any]], number: int) -> dict[str, Any]:
    """A candidate with what the file says of it."""
    return {name: columns[f"{name}s"][number] for name in ("text", "label", "answer") if f"{name}s" in columns}


def structured(
    fields: Sequence[Mapping[str, Any]], out: Mapping[str, np.ndarray], text: str, tokens: Sequence[Token]
) -> dict[str, Any]:
    """Every field: of the text, of its words, of its pairs of words."""
    places = [token.place for token in tokens if token.place]
    words: list[dict[str, Any]] = [{"word": text[a:b], "start": a, "end": b} for a, b in places]
    answer: dict[str, Any] = {"words": words} if has_words(fields) else {}

    def value(field: Mapping[str, Any], cell: Any) -> Any:
        if field["type"] == "number":
            return float(f"{float(cell):.6e}")
        if field["type"] == "span":
            first, last = cell.tolist()
            if first < 0:
                return None
            start, end = places[first][0], places[last][1]
            return {"text": text[start:end], "start": start, "end": end}
        if field["type"] == "label":
            return field["labels"][int(cell)]
        return int(cell) if cell >= 0 else None

    for field in fields:
        name, cells, scores = field["name"], out[field["name"]], out.get(f"{field['name']}_scores")
        if field["per"] == "text":
            answer[name] = value(field, cells)
            if scores is not None:
                answer[f"{name}_score"] = score(scores)
        elif field["per"] == "word":
            for i, word in enumerate(words):
                word[name] = value(field, cells[i])
                if scores is not None:
                    word[f"{name}_score"] = score(scores[i])
        else:
            key = "label" if field["type"] == "label" else "value"
            answer[name] = [
                {"from": i, "to": j, key: value(field, cells[i, j])}
                | ({"score": score(scores[i, j])} if scores is not None else {})
                for i, j in itertools.product(range(len(words)), repeat=2)
                if cells[i, j] != 0
            ]
    return answer


def fill(
    mask: str, tokenizer: Tokenizer, text: str, tokens: Sequence[Token], row: Sequence[int], p: float
) -> dict[str, Any]:
    """The text with its gaps filled by the tokens of a row."""
    gap = tokenizer.token_to_id(mask)
    gaps = [t for t, token in enumerate(tokens) if token.id == gap]
    splits = json.loads(tokenizer.to_str())["model"]["type"] != "WordLevel"

    def decoded(ids: Sequence[int]) -> str:
        return tokenizer.decode([*ids], skip_special_tokens=False)

    def behind(t: int) -> str:
        if not splits:
            return decoded([row[t]])
        before = decoded(row[t - 1 : t]) if t else ""
        both = decoded(row[max(0, t - 1) : t + 1])
        return (both[len(before) :] if both.startswith(before) else decoded([row[t]])).strip()

    groups: list[list[int]] = []
    for t in gaps:
        beside = groups and groups[-1][-1] == t - 1 and tokens[t - 1].end == tokens[t].start
        groups[-1].append(t) if beside else groups.append([t])
    filled, at = "", 0
    for group in groups:
        strings = [behind(t) for t in group]
        if splits and any("\ufffd" in string for string in strings):
            strings = [decoded([row[t] for t in group]).strip()]
        filled += text[at : tokens[group[0]].start] + "".join(strings)
        at = tokens[group[-1]].end
    words = [decoded([row[t]]).strip() or decoded([row[t]]) for t in gaps]
    return {"generated_text": filled + text[at:], "score": p, "words": words}


def stretch(text: str, tokens: Sequence[Token], first: int, last: int, p: float) -> dict[str, Any]:
    """The tokens from first to last, in the second text."""
    if first < 0:
        return {"answer": "", "score": p, "start": 0, "end": 0}
    shift = next(token.end for token, after in pairwise(tokens) if after.segment == 2 and token.segment == 1)
    start, end = tokens[first].start, tokens[last].end
    end -= len(re.findall(f"[{WHITE}]*$", text[start:end])[0])
    return {"answer": text[start:end], "score": p, "start": start - shift, "end": end - shift}


def joined(each: Mapping[str, Any]) -> Any:
    """The answers of the heads, by name; of a head alone its answer."""
    return each[""] if "" in each else {before[:-1]: answer for before, answer in each.items()}


def items(
    answer: Mapping[str, Any],
    text: str,
    tokens: Sequence[Token],
    path: np.ndarray,
    out: Mapping[str, np.ndarray] | None,
    b: int,
) -> list[dict[str, Any]]:
    words = [token.place for token in tokens if token.place]
    tags = [answer["labels"][tag] for tag in path[: len(words)]]
    if answer["kind"] == "tags":
        places = [("entity", tag, i, i) for i, tag in enumerate(tags)]
    else:
        places = [("entity_group", *span) for span in spans(tags)]
    made = []
    for key, label, i, j in places:
        start, end = words[i][0], words[j][1]
        item = {key: label, "word": text[start:end], "start": start, "end": end}
        if out is not None and key == "entity":
            item["score"] = score(out["scores"][b, i])
        elif out is not None:
            item["score"] = score(np.exp(out["opens"][b, i] + out["closes"][b, j]))
        made.append(item)
    return made


def opened(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    data = content(path / "bundle.json", 67_108_864)
    seal = SEAL.search(data)
    if seal is None:
        raise RefusedError("no seal")
    body = data[: seal.start()]
    if hashlib.sha256(body).hexdigest().encode() != seal[1]:
        raise RefusedError("damaged bundle.json")
    try:
        manifest = json.loads((body + b"}").decode(), object_pairs_hook=once, parse_constant=constant)
    except ValueError as error:
        raise RefusedError(str(error)) from error
    if manifest.get("format") != "seqpipe-bundle" or manifest.get("version") not in (2, 3, 4):
        raise RefusedError("another format or version")
    for key in {"graphs", "weights"} & manifest.keys():
        raise RefusedError(f"{key} is reserved")
    if not isinstance(manifest.get("cache", []), list):
        raise RefusedError("cache")
    for key, kind in KEYS.items():
        if not isinstance(manifest.get(key), kind):
            raise RefusedError(key)
    files = {}
    for name, entry in manifest["files"].items():
        if not NAME.fullmatch(name) or name == "bundle.json" or set(entry) != {"sha256", "bytes"}:
            raise RefusedError(name)
        files[name] = content(path / name, 1_900_000_000)
        if len(files[name]) != entry["bytes"] or hashlib.sha256(files[name]).hexdigest() != entry["sha256"]:
            raise RefusedError(f"damaged {name}")
    texts = {name[: -len("ids")] for name in manifest["inputs"] if name == "ids" or name.endswith(".ids")}
    if not {"model.onnx", *(f"tokenizer.{before}json" for before in texts)} <= set(files):
        raise RefusedError("a file is missing")
    return manifest, files


def content(path: Path, most: int) -> bytes:
    if not path.exists() or not stat.S_ISREG(path.lstat().st_mode) or path.lstat().st_size > most:
        raise RefusedError(f"{path} is no regular file, or too long")
    return path.read_bytes()


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def constant(name: str) -> None:
    raise ValueError(name)


def tokenizer(data: bytes) -> Tokenizer:
    made = Tokenizer.from_str(data.decode())
    if [made.token_to_id(token) for token in SPECIAL] != [0, 1, 2, 3]:
        raise RefusedError("other special tokens")
    return made


def session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


TEXTS = ("texts", "automaton", "trie")


def listed(name: str, value: Any) -> list[str]:
    texts = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) and text for text in texts):
        raise RefusedError(name)
    return texts


def piece_bytes(target: Tokenizer, piece: str) -> bytes:
    """What a piece adds to a text."""
    decoder = str(target.decoder)
    if "ByteLevel" in decoder:
        printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
        letters = {chr(256 + i): one for i, one in enumerate(one for one in range(256) if one not in printed)}
        return bytes(letters.get(letter, ord(letter) & 255) for letter in piece)
    if "ByteFallback" in decoder and re.fullmatch("<0x..>", piece):
        return bytes([int(piece[3:5], 16)])
    join: Any = target.decoder.decode if target.decoder else " ".join
    other = "a</w>" if "BPEDecoder" in decoder else "a"
    whole, behind = join([other, piece, other]), join([other, other])[1:]
    return (whole[1 : len(whole) - len(behind)] if whole.endswith(behind) else join([other, piece])[1:]).encode()


def filled_arcs(rows: Sequence[list[tuple[int, int, int]]]) -> np.ndarray:
    longest = max(map(len, rows), default=0)
    return np.array([row + [(0, 0, 0)] * (longest - len(row)) for row in rows], np.int64)


def untorn(target: Tokenizer, kept: Sequence[int], text: str) -> str:
    """The text without what stands for the beginning of a character at its end."""
    data = b"".join(piece_bytes(target, target.id_to_token(i)) for i in kept if i < target.get_vocab_size())
    for n in range(1, 4):
        lead = data[-n] if n <= len(data) else 0
        if lead >= 0xC0:
            size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            torn = size > n and "\ufffd" in text[-1:] and len(data[-n:].decode(errors="replace")) == 1
            return text[: -(1 if "ByteLevel" in str(target.decoder) else n)] if torn else text
        if lead < 0x80:
            break
    return text


def option_inputs(known: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Only what is given: the graph knows the defaults."""
    made = {}
    for name, value in given.items():
        option = known.get(name)
        if option is None or (isinstance(value, bool) != (option["type"] == "bool")):
            raise RefusedError(name)
        if option["type"] == "tokens" and isinstance(value, list):
            made[name] = np.array([value], np.int64).reshape(1, -1)
            continue
        low, high = option.get("minimum"), option.get("maximum")
        if option["type"] not in TYPES:
            raise RefusedError(name)
        if isinstance(value, (int, float)) and abs(value) > (
            3.4028234663852886e38 if option["type"] == "float" else 2**63 - 1
        ):
            raise RefusedError(name)
        if not isinstance(value, TYPES[option["type"]]) or not (low is None or value >= low):
            raise RefusedError(name)
        if not (high is None or value <= high):
            raise RefusedError(name)
        dtype: Any = {"float": np.float32, "bool": np.bool_}.get(option["type"], np.int64)
        made[name] = np.zeros(given[name], dtype) if option["type"] == "size" else np.array(value, dtype)
    if {"n_best", "beams"} <= set(known):
        asked = {name: given.get(name, known[name]["default"]) for name in ("n_best", "beams")}
        if asked["n_best"] > asked["beams"]:
            raise RefusedError("more answers than beams")
    if {"min_length", "max_length", "prefix"} <= set(known):
        least, most = (given.get(name, known[name]["default"]) for name in ("min_length", "max_length"))
        if max(least, made["prefix"].shape[1] if "prefix" in made else 0) >= most:
            raise RefusedError("no room to write")
    return made


def uniform(seed: int, texts: Sequence[Sequence[str]], beams: int, steps: int) -> np.ndarray:
    """The page's random numbers, one after another."""
    made = np.zeros((len(texts), beams, steps), np.float32)
    for b, words in enumerate(texts):
        lines = "".join(f"\n{word}" for word in words)
        for k, t in itertools.product(range(beams), range(steps)):
            digest = hashlib.sha256(f"{seed} {k} {t // 8}{lines}".encode()).digest()
            made[b, k, t] = (struct.unpack_from("<I", digest, 4 * (t % 8))[0] >> 8) / 2**24
    return made


def clean(text: str) -> str:
    return "".join("\ufffd" if "\ud800" <= point <= "\udfff" else point for point in text)


def chars(rows: Sequence[Sequence[Token]], size: tuple[int, int], longest: int, alphabet: str) -> np.ndarray:
    kept = [[halves(token.word, longest) for token in tokens] for tokens in rows]
    most = max([1, *(len(word) for words in kept for word in words)])
    made = np.zeros((*size, most), np.int64)  # (B, T, C)
    for b, words in enumerate(kept):
        for t, word in enumerate(words):
            made[b, t, : len(word)] = [alphabet.find(point) + 2 if point in alphabet else 1 for point in word]
    return made


def unpacked(text: str) -> list[int]:
    try:
        data = base64.b64decode(text.encode(), validate=True)
        return [number for (number,) in struct.iter_unpack("<I", data)]
    except (binascii.Error, struct.error) as error:
        raise RefusedError("hashes of n-grams") from error


def ngrams(rows: Sequence[Sequence[Token]], size: tuple[int, int], entry: Mapping[str, Any]) -> np.ndarray:
    number = {value: i for i, value in enumerate(unpacked(entry["hashes"]), 1)}
    places = [numbers_of([token.word for token in tokens], number, entry) for tokens in rows]
    most = max([1, *(len(row) for text in places for row in text)])
    made = np.zeros((*size, most), np.int64)  # (B, T, K)
    for b, text in enumerate(places):
        seen = {0}
        for t, row in enumerate(text):
            for k, value in enumerate(row):
                made[b, t, k] = 0 if entry["binary"] and value in seen else value
                seen.add(value)
    return made


def numbers_of(words: Sequence[str], number: Mapping[int, int], entry: Mapping[str, Any]) -> list[list[int]]:
    """The numbers of the n-grams of each word of a text, at their places."""
    hashes = [hash_of(word) for word in words]
    text = []
    for t, word in enumerate(words):
        row = []
        for count in range(1, entry["words"] + 1):
            backward = hashes[max(0, t + 1 - count) : t + 1][::-1]
            row.append(number.get(polynomial(2, backward), 0) if len(backward) == count else 0)
        points = [ord("<"), *lowered(word), ord(">")]
        shortest, longest = entry["chars"] or (1, 0)
        for start, count in itertools.product(range(len(points)), range(shortest, longest + 1)):
            if start + count <= len(points):
                value = polynomial(1, points[start : start + count])
                row += [number[value]] if value in number else []
        text.append(row)
    return text


def lowered(word: str) -> list[int]:
    return [ord(lower) for point in word[:40] for lower in point.lower()]


def polynomial(start: int, values: Iterable[int]) -> int:
    made = start
    for value in values:
        made = (made * 0x9E3779B1 + value) % 2**32
    return made


def hash_of(word: str) -> int:
    made = polynomial(0, lowered(word))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        made = (made ^ made >> shift) * factor % 2**32
    return made


def visible(
    pieces: Sequence[tuple[int, tuple[int, int], int]], text: str, sign: int | None
) -> dict[int, list[tuple[int, int, int]]]:
    """By word the pieces without the white space around them; what has no characters goes to what follows it."""
    white, words = re.compile(f"[{WHITE}]"), dict[int, list[tuple[int, int, int]]]()
    places, before = [], []
    for _, (a, b), _ in pieces:
        while a < b and white.fullmatch(text[a]):
            a += 1
        while a < b and white.fullmatch(text[b - 1]):
            b -= 1
        places.append((a, b))
    for n, (i, _, word) in enumerate(pieces):
        a, b = places[n]
        following = next((c for c, d in places[n + 1 :] if c < d), None)
        if a == b or (i == sign and following == a):
            before.append(i)
        else:
            words.setdefault(word, []).extend([*((j, a, a) for j in before), (i, a, b)])
            before = []
    return words


def ended(tokens: list[Token]) -> list[Token]:
    """The tokens, where those without a place belong to the word of the last one with a place."""
    for t in range(len(tokens) - 1, -1, -1):
        if place := tokens[t].place:
            following = [u for u in range(t + 1, len(tokens)) if tokens[u].place]
            last = tokens[(following[0] if following else len(tokens)) - 1]
            tokens[t] = tokens[t]._replace(place=(place[0], last.end))
    return tokens


def tokens_of(pieces: Sequence[tuple[int, int, int]], text: str, place: tuple[int, int] | None) -> list[Token]:
    """The pieces of one word."""
    place = place or (pieces[0][1], pieces[-1][2])
    return [Token(i if i > 3 else 1, text[a:b], a, b, None if k else place) for k, (i, a, b) in enumerate(pieces)]


def in_sentences(tokens: Sequence[Token], text: str, split: str) -> list[list[int]]:
    """Positions from 1 of the tokens of each sentence."""
    cuts = [0, *(i + 1 for i, point in enumerate(text) if point == "\n"), len(text)]
    lines = [(a, b) for a, b in pairwise(cuts) if re.search(f"[^{WHITE}]", text[a:b])]
    found = lines if split == "lines" else sentences(text)
    rows: list[list[int]] = [[] for _ in found or [0]]
    for t, token in enumerate(tokens, 1):
        after = [s for s, (_, end) in enumerate(found) if end > token.start]
        rows[after[0] if after else -1].append(t)
    return [row for row in rows if row]


def filled(rows: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
    """(B, S, W) of lists, filled up with 0."""
    made = np.zeros((len(rows), max(map(len, rows)), max(len(one) for row in rows for one in row)), np.int64)
    for b, row in enumerate(rows):
        for s, one in enumerate(row):
            made[b, s, : len(one)] = one
    return made


def halves(word: str, longest: int) -> str:
    half = longest // 2
    return word if len(word) <= longest else word[: longest - half] + word[len(word) - half :]


def spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Label, first and last token of each span."""
    found: list[tuple[str, int, int]] = []
    before: tuple[str, str] | None = None
    for i, tag in enumerate(tags):
        now = split(tag)
        if now is not None:
            if now[0] in "BS" or before is None or before[0] in "ES" or before[1] != now[1]:
                found.append((now[1], i, i))
            else:
                found[-1] = (now[1], found[-1][1], i)
        before = now
    return found


def split(tag: str) -> tuple[str, str] | None:
    """Prefix and label; None if the tag is outside."""
    prefix, _, label = tag.partition("-")
    if prefix not in tuple("BIESLU"):
        return None
    return {"L": "E", "U": "S"}.get(prefix, prefix), label or "_"


def score(value: Any) -> float:
    return round(min(1.0, max(0.0, float(value))), 6)


def sentences(text: str) -> list[tuple[int, int]]:
    cuts = [0, *(match.end() for match in CUT.finditer(text)), len(text)]
    return [(a, b) for a, b in pairwise(cuts) if re.search(f"[^{WHITE}]", text[a:b])]


def same(one: Any, other: Any) -> bool:
    """The comparison with golden examples."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 0.0001
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return (type(one) is type(other) or isinstance(one, str)) and bool(one == other)
