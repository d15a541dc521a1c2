"""A second runtime for bundles, written from docs/internals/bundle-*.md alone: it imports nothing of seqpipe.

`second_tokenizer` reads tokenizer.json; the library `tokenizers` those with parts that the page leaves to it.
"""

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
import tokenizers
from PIL import Image, ImageOps
from second_tokenizer import Encoding, Tokenizer, UnknownPartError

SEAL = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n}\n\Z')
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
SPECIAL = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
EOS = 3
KEYS: dict[str, type | tuple[type, ...]] = {
    "name": str, "files": dict, "field": (str, list, dict), "inputs": dict, "options": dict, "outputs": list,
    "answer": dict, "limits": dict, "golden": list, "reader": dict, "metrics": dict, "parity": dict, "made_with": dict,
}  # fmt: skip
INPUT_KINDS = ("chars", "ngrams", "sentences", "pieces", "segments", "matrix", "image", "mel", "copy", "column")
GENERATED_TEXT = ("text", "generation", "fill-mask", "span-infilling")
OUTPUTS: dict[str, set[str]] = {
    "tags": {"tags", "scores", "opens", "closes"},
    "spans": {"tags", "scores", "opens", "closes"},
    **{kind: {"tokens", "scores"} for kind in GENERATED_TEXT},
    "label": {"label", "scores"},
    "labels": {"labels", "scores"},
    "score": {"score"},
    "vector": {"vector"},
    "candidate": {"nearest", "scores", "vector"},
    "span": {"starts", "ends", "scores"},
    "pointers": {"pointers", "scores"},
    "structured": set(),  # the names of its fields
}
OPTION_TYPES: dict[str, tuple[type, ...]] = {"size": (int,), "int": (int,), "float": (int, float), "bool": (bool,)}
TEXT_OPTIONS = ("texts", "automaton", "trie")
NO_ALTERNATIVE = -1e8  # log-probability from which down an alternative does not exist
WHITE = "\u0009-\u000d\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
CLOSERS = "[\"'”’)\\]」』》）]*"
CUT = re.compile(rf"[.!?…]+{CLOSERS}(?=[{WHITE}])|[。！？]+{CLOSERS}|\n[{WHITE}]*\n|\n(?=[^{WHITE}])")
# The property Default_Ignorable_Code_Point, as Unicode's file of derived properties lists it.
IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)

Arrays = dict[str, np.ndarray]
Offsets = tuple[int, int]
Piece = tuple[int, int, int]  # id, start, end
Entry = Mapping[str, Any]
Record = str | Mapping[str, Any]


class RefusedError(Exception):
    """The bundle, the record or the option is refused."""


def refuse_if(condition: object, message: str) -> None:
    if condition:
        raise RefusedError(message)


class Token(NamedTuple):
    id: int
    word: str
    start: int
    end: int
    place: Offsets | None  # of the word that begins with it
    segment: int = 1


Tokens = Sequence[Token]
Rows = Sequence[Tokens]


class LibraryTokenizer:
    """A tokenizer of a checkpoint, with parts that only the library `tokenizers` defines."""

    def __init__(self, data: bytes):
        self.library = tokenizers.Tokenizer.from_str(data.decode())
        self.model_type = json.loads(data)["model"]["type"]
        self.decoder, self.size = str(self.library.decoder), self.library.get_vocab_size(with_added_tokens=True)
        self.token_to_id, self.id_to_token = self.library.token_to_id, self.library.id_to_token

    def normalize(self, text: str) -> str:
        return str(self.library.normalizer.normalize_str(text)) if self.library.normalizer else text

    def origins(self, text: str) -> set[int]:
        normalized = tokenizers.PreTokenizedString(text)
        normalized.normalize(self.library.normalizer.normalize)
        normalized.split(lambda _, part: part.split(tokenizers.Regex(r"[\s\S]"), "isolated"))
        return {i for _, (a, b), _ in normalized.get_splits("original", "char") for i in range(a, b)}

    def encode(self, text: str) -> Encoding:
        encoding = self.library.encode(text, add_special_tokens=False)
        return Encoding(encoding.ids, encoding.offsets, encoding.word_ids)

    def encode_words(self, strings: Sequence[str]) -> Encoding:
        encoding = self.library.encode(strings, is_pretokenized=True, add_special_tokens=False)
        return Encoding(encoding.ids, encoding.offsets, encoding.word_ids)

    def join(self, strings: Sequence[str]) -> str:
        return str(self.library.decoder.decode([*strings])) if self.library.decoder else " ".join(strings)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.library.decode([*ids], skip_special_tokens=False))


AnyTokenizer = Tokenizer | LibraryTokenizer


def read_tokenizer(data: bytes) -> AnyTokenizer:
    try:
        tokenizer: AnyTokenizer = Tokenizer(data)
    except UnknownPartError:
        tokenizer = LibraryTokenizer(data)
    refuse_if([tokenizer.token_to_id(token) for token in SPECIAL] != [0, 1, 2, 3], "other special tokens")
    return tokenizer


# From a record to tokens, and from tokens to the inputs of the graph


class TextSource:
    """A text of each record: its tokens, and the graph inputs computed from them."""

    target_tokenizers: Mapping[str, AnyTokenizer]  # by file name

    def __init__(
        self, field: Any, file: bytes, entries: Entry, limits: Entry, generates: bool = False, raw: bool = False
    ):
        self.field, self.entries, self.limits, self.generates, self.raw = field, entries, limits, generates, raw
        self.joins_words = any(entry.get("joins_words") for entry in entries.values())
        content = json.loads(file)
        self.prefix = content["model"].get("continuing_subword_prefix")
        self.is_word_level = content["model"]["type"] == "WordLevel"
        self.splits_words = not self.is_word_level and not generates and not raw
        self.forms = re.findall('"type": ?"(NFK?[CD])"', json.dumps(content["normalizer"]))
        self.tokenizer = read_tokenizer(file)
        self.space_id = self.tokenizer.token_to_id("▁")

    def record(self, record: Record) -> tuple[str, list[Token]]:
        """The text of a record and its tokens."""
        if isinstance(self.field, list):
            refuse_if(len(self.field) != 2, "neither a text nor a pair")
            return self.pair(*(self.visible_text(record[name]) for name in self.field))
        record = {self.field: record} if isinstance(record, str) else record
        words = record.get("words") if self.field == "text" else None
        has_text = words is None or isinstance(record.get("text"), str)
        text = record[self.field] if has_text else " ".join(words)
        if words is None or self.raw or (self.generates and has_text):
            text = self.visible_text(text)
            tokens = self.from_text(text)
        else:
            tokens = self.from_words(words, text)
        if self.limits.get("cut"):
            tokens = extend_words(tokens[: self.limits["tokens"]])
        refuse_if(len(tokens) > self.limits["tokens"], "too long a text")
        return text, tokens

    def visible_text(self, text: str) -> str:
        """The text, or the empty text if none of its code points is visible."""
        return text if self.generates or self.raw else re.sub(rf"\A[{WHITE}{IGNORABLE}]*\Z", "", text)

    def pair(self, first: str, second: str) -> tuple[str, list[Token]]:
        """A pair of texts as one text, and its tokens."""
        n = len(first)
        before, after = self.from_text(first), self.from_text(second)
        refuse_if(len(before) > self.limits.get("first_tokens", len(before)), "too long a first text")
        tokens = [*before, Token(EOS, "\n", n, n + 1, (n, n + 1))] if before or after else []
        for token in after:
            place = token.place and (token.place[0] + n + 1, token.place[1] + n + 1)
            tokens.append(Token(token.id, token.word, token.start + n + 1, token.end + n + 1, place, 2))
        refuse_if(len(tokens) > self.limits["tokens"], "too long a pair")
        return f"{first}\n{second}", tokens

    def from_text(self, text: str) -> list[Token]:
        text = replace_surrogates(text)
        encoding = self.tokenizer.encode(text)
        if self.raw:
            tokens = [text_token(i, a, b, text) for i, (a, b) in zip(encoding.ids, encoding.offsets, strict=True)]
            pieces = [*map(self.tokenizer.id_to_token, encoding.ids)]
            return self.join_tokens(tokens, pieces, text) if self.joins_words else tokens
        offsets = self.corrected(encoding.offsets, text)
        if self.splits_words:
            words: list[list[Piece]] = []
            pieces = [*zip(encoding.ids, offsets, encoding.word_ids, strict=True)]
            for word in pieces_of_words(pieces, text, self.space_id).values():
                if words and word[0][1] < words[-1][-1][2]:
                    words[-1].extend(word)
                else:
                    words.append(word)
            return [token for word in words for token in word_tokens(word, text, (word[0][1], word[-1][2]))]
        tokens = []
        for i, (a, b) in zip(encoding.ids, offsets, strict=True):
            if self.forms and self.is_word_level and tokens and a < tokens[-1].end:
                a = tokens.pop().start
                i = self.id(text[a:b])
            tokens.append(text_token(i, a, b, text))
        return tokens

    def join_tokens(self, tokens: list[Token], pieces: Sequence[str], text: str) -> list[Token]:
        """Join every token to the words of a converted checkpoint."""
        for t, token in enumerate(tokens):
            if self.prefix:
                continues = len(pieces[t]) != token.end - token.start
            else:
                continues = token.start > 0 and " " not in text[token.start - 1 : token.start + 1]
            if t and continues and token.id != 1:
                tokens[t] = token._replace(place=None)
        return extend_words(tokens)

    def corrected(self, offsets: Sequence[Offsets], text: str) -> list[Offsets]:
        """The offsets, each extended by the following code points that composition leaves nothing of."""
        if not self.forms or self.forms[-1] not in ("NFC", "NFKC"):
            return [*offsets]
        origins, extended = self.tokenizer.origins(text), []
        for (a, b), (following, _) in itertools.zip_longest(offsets, offsets[1:], fillvalue=(len(text), 0)):
            while b < following and b not in origins and not re.fullmatch(f"[{WHITE}]", text[b]):
                b += 1
            extended.append((a, b))
        return extended

    def from_words(self, words: Iterable[str], text: str) -> list[Token]:
        tokens, places, end = [], [], 0
        for word in words:
            start = text.find(word, end)
            refuse_if(start < 0, f"{word!r} is not in the text")
            end = start + len(word)
            places.append((start, end))
            tokens.append(Token(self.id(replace_surrogates(word)), replace_surrogates(word), start, end, (start, end)))
        splits = not self.is_word_level and not self.raw
        return self.split_words(places, replace_surrogates(text)) if splits else tokens

    def split_words(self, places: Sequence[Offsets], text: str) -> list[Token]:
        """The pieces of words with these offsets."""
        starts, end = [], 0
        for a, b in places:
            starts.append(a - len(re.findall(f"[{WHITE}]*$", text[end:a])[0]))
            end = b
        strings = [text[start:b] for start, (_, b) in zip(starts, places, strict=True)]
        encoding = self.tokenizer.encode_words(strings)
        numbered = zip(encoding.offsets, encoding.word_ids, strict=True)
        offsets = self.corrected([(a + starts[word], b + starts[word]) for (a, b), word in numbered], text)
        pieces = pieces_of_words([*zip(encoding.ids, offsets, encoding.word_ids, strict=True)], text, self.space_id)
        words = [word_tokens(pieces.get(n) or [(1, *place)], text, place) for n, place in enumerate(places)]
        return [*itertools.chain(*words)]

    def id(self, word: str) -> int:
        i = vocabulary_id(word, self.tokenizer)
        return 1 if i is None else i

    def inputs(self, rows: Rows, texts: Sequence[str], records: Sequence[Record] = ()) -> Arrays:
        """The inputs of the graph for a batch of tokenised texts."""
        size, mask = padded_size(rows), pad_rows([[1] * len(tokens) for tokens in rows]) > 0
        arrays = {"ids": pad_rows([[token.id for token in tokens] for tokens in rows]), "mask": mask}
        for name, entry in self.entries.items():
            words, form = rows, entry.get("normalize")
            if form:
                words = [[t._replace(word=unicodedata.normalize(form, t.word)) for t in tokens] for tokens in rows]
            match entry.get("kind"):
                case "chars":
                    arrays[name] = chars(words, size, entry["longest"], entry["alphabet"])
                case "ngrams":
                    arrays[name] = ngrams(words, size, entry)
                case "sentences":
                    split = [in_sentences(*row, entry["split"]) for row in zip(rows, texts, strict=True)]
                    arrays[name] = pad_grid(split, padded_size(split))
                case "pieces":
                    arrays[name] = pad_rows(
                        [[t for t, token in enumerate(tokens, 1) if token.place] for tokens in rows]
                    )
                case "segments":
                    arrays[name] = pad_rows([[token.segment for token in tokens] for tokens in rows])
                case "column":
                    arrays[name] = np.array([[column_value(record, entry)] for record in records], np.int64)
                case "copy":
                    target = self.target_tokenizers[entry["tokenizer"]]
                    arrays[name] = pad_rows([copy_ids(tokens, target, entry["same"])[0] for tokens in rows])
        return arrays


class NumericSource:
    """Rows of numbers of each record, also those of a picture or of a sound."""

    def __init__(self, field: str, entries: Mapping[str, Any]):
        self.field, self.entries = field, entries
        self.name, self.entry = next((name, entry) for name, entry in entries.items() if "means" in entry)
        times = self.entry.get("width", 1)  # the columns of a picture share the numbers of their channel
        self.means, self.deviations = (np.tile(self.entry[key], times) for key in ("means", "deviations"))

    def rows(self, value: Any) -> Any:
        """The rows of a field's value, before means and deviations."""
        if self.entry["kind"] != "matrix":
            return {"image": picture, "mel": sound}[self.entry["kind"]](value, self.entry)
        rows = [value] if value and not isinstance(value[0], list) else value
        refuse_if(any(len(row) != len(self.means) for row in rows), "rows of another width")
        return rows

    def record(self, record: Any) -> tuple[str, list[Token]]:
        """A token for each row, whose word is the row's numbers."""
        value = record[self.field] if isinstance(record, Mapping) else record
        return "", [Token(1, struct.pack(f"<{len(row)}f", *row).hex(), 0, 0, None) for row in self.rows(value)]

    def inputs(self, rows: Rows, texts: Sequence[str], records: Sequence[Any]) -> Arrays:
        mask = pad_rows([[1] * len(tokens) for tokens in rows]) > 0
        array = np.zeros((*mask.shape, len(self.means)), np.float32)
        for b, tokens in enumerate(rows):
            data = bytes.fromhex("".join(token.word for token in tokens))
            numbers = np.frombuffer(data, "<f4").reshape(len(tokens), len(self.means)).astype(np.float64)
            array[b, : len(tokens)] = (numbers - self.means) / self.deviations
        return {self.name: array, "mask": mask}


def replace_surrogates(text: str) -> str:
    return "".join("\ufffd" if "\ud800" <= point <= "\udfff" else point for point in text)


def vocabulary_id(word: str, tokenizer: AnyTokenizer) -> int | None:
    """The id of a normalised word that is one complete token and no special one, else None."""
    normalized = tokenizer.normalize(word)
    return None if normalized in SPECIAL else tokenizer.token_to_id(normalized)


def text_token(i: int, start: int, end: int, text: str) -> Token:
    return Token(i if i > 3 else 1, text[start:end], start, end, (start, end))


def word_tokens(pieces: Sequence[Piece], text: str, place: Offsets) -> list[Token]:
    """The pieces of one word as tokens, the first with the word's offsets."""
    return [text_token(*piece, text)._replace(place=None if k else place) for k, piece in enumerate(pieces)]


def pieces_of_words(
    pieces: Sequence[tuple[int, Offsets, int]], text: str, space_id: int | None
) -> dict[int, list[Piece]]:
    """The pieces of each word without white space around them; those without characters belong to the next piece."""
    words: dict[int, list[Piece]] = {}
    white, trimmed, waiting = re.compile(f"[{WHITE}]"), [], []
    for _, (a, b), _ in pieces:
        while a < b and white.fullmatch(text[a]):
            a += 1
        while a < b and white.fullmatch(text[b - 1]):
            b -= 1
        trimmed.append((a, b))
    for n, (i, _, word) in enumerate(pieces):
        a, b = trimmed[n]
        following = next((c for c, d in trimmed[n + 1 :] if c < d), None)
        if a == b or (i == space_id and following == a):
            waiting.append(i)
        else:
            words.setdefault(word, []).extend([*((j, a, a) for j in waiting), (i, a, b)])
            waiting = []
    return words


def extend_words(tokens: list[Token]) -> list[Token]:
    """The tokens, where those without a place belong to the word of the last token with a place."""
    last = len(tokens) - 1
    for t in range(last, -1, -1):
        if place := tokens[t].place:
            tokens[t] = tokens[t]._replace(place=(place[0], tokens[last].end))
            last = t - 1
    return tokens


def column_value(record: Record, entry: Entry) -> int:
    """The position of a record field's text in the values of the entry."""
    value = None if isinstance(record, str) else record.get(entry["field"])
    refuse_if(value not in entry["values"], f"{entry['field']}: {value!r}")
    return list(entry["values"]).index(value)


def copy_ids(tokens: Tokens, target: AnyTokenizer, same: bool) -> tuple[list[int], list[str]]:
    """Number each token as a word that may be copied; return the new words too."""
    numbers, new_words = [], list[str]()
    for token in tokens:
        number = token.id if same else vocabulary_id(token.word, target)
        if number is None or number <= 3:
            if token.word not in new_words:
                new_words.append(token.word)
            number = target.size + new_words.index(token.word)
        numbers.append(number)
    return numbers, new_words


def padded_size(rows: Sequence[Sequence[Any]]) -> tuple[int, int]:
    """Number of rows, and the length of the longest, at least 1."""
    return len(rows), max([1, *map(len, rows)])


def pad_rows(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """(B, N) of rows of unequal lengths, padded with 0."""
    return pad_grid([rows], (1, len(rows)))[0]


def pad_grid(rows: Sequence[Sequence[Sequence[int]]], size: tuple[int, int]) -> np.ndarray:
    """(B, T, N) of lists of unequal lengths, padded with 0; `size` is (B, T)."""
    array = np.zeros((*size, max([1, *(len(cell) for row in rows for cell in row)])), np.int64)
    for b, row in enumerate(rows):
        for t, cell in enumerate(row):
            array[b, t, : len(cell)] = cell
    return array


def chars(rows: Rows, size: tuple[int, int], longest: int, alphabet: str) -> np.ndarray:
    kept = [[shorten_word(token.word, longest) for token in tokens] for tokens in rows]
    return pad_grid([[[alphabet.find(point) + 2 for point in word] for word in words] for words in kept], size)


def shorten_word(word: str, longest: int) -> str:
    """The beginning and the end of a word that is too long."""
    half = longest // 2
    return word if len(word) <= longest else word[: longest - half] + word[len(word) - half :]


def unpack_hashes(text: str) -> list[int]:
    data = decode_base64(text)
    refuse_if(len(data) % 4 or ":" in text, "hashes of n-grams")
    return np.frombuffer(data, "<u4").tolist()


def ngrams(rows: Rows, size: tuple[int, int], entry: Entry) -> np.ndarray:
    numbers = {value: i for i, value in enumerate(unpack_hashes(entry["hashes"]), 1)}
    grid = [ngram_numbers([token.word for token in tokens], numbers, entry) for tokens in rows]
    if entry["binary"]:
        for text in grid:
            seen = {0}
            for row in text:
                for k, value in enumerate(row):
                    row[k] = 0 if value in seen else value
                    seen.add(value)
    return pad_grid(grid, size)


def ngram_numbers(words: Sequence[str], numbers: Mapping[int, int], entry: Entry) -> list[list[int]]:
    """The numbers of the n-grams at each word of a text."""
    hashes = [word_hash(word) for word in words]
    shortest, longest = entry["chars"] or (1, 0)
    text = []
    for t, word in enumerate(words):
        row = []
        for count in range(1, entry["words"] + 1):
            backward = hashes[max(0, t + 1 - count) : t + 1][::-1]
            row.append(numbers.get(polynomial(2, backward), 0) if len(backward) == count else 0)
        points = [ord("<"), *lowercase_code_points(word), ord(">")]
        for start, count in itertools.product(range(len(points)), range(shortest, longest + 1)):
            value = polynomial(1, points[start : start + count])
            if start + count <= len(points) and value in numbers:
                row.append(numbers[value])
        text.append(row)
    return text


def lowercase_code_points(word: str) -> list[int]:
    return [ord(lower) for point in word[:40] for lower in point.lower()]


def polynomial(start: int, values: Iterable[int]) -> int:
    h = start
    for value in values:
        h = (h * 0x9E3779B1 + value) % 2**32
    return h


def word_hash(word: str) -> int:
    h = polynomial(0, lowercase_code_points(word))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = (h ^ h >> shift) * factor % 2**32
    return h


def in_sentences(tokens: Tokens, text: str, split: str) -> list[list[int]]:
    """Positions from 1 of the tokens of each sentence."""
    lines = text_parts(text, [i + 1 for i, point in enumerate(text) if point == "\n"])
    parts = lines if split == "lines" else sentences(text)
    places = [next((s for s, (_, end) in enumerate(parts) if end > token.start), len(parts) - 1) for token in tokens]
    return [[t for t, place in enumerate(places, 1) if place == s] for s in sorted({*places})]


def sentences(text: str) -> list[Offsets]:
    return text_parts(text, [match.end() for match in CUT.finditer(text)])


def text_parts(text: str, cuts: Sequence[int]) -> list[Offsets]:
    """The offsets of the parts between cuts that are not white space only."""
    return [(a, b) for a, b in pairwise([0, *cuts, len(text)]) if re.search(f"[^{WHITE}]", text[a:b])]


# Pictures and sounds


def check_media_bounds(entry: Entry, version: int) -> None:
    """Refuse an entry of a picture or a sound that exceeds the bounds."""
    numbers = [*entry["means"], *entry["deviations"]]
    refuse_if(not all(isinstance(number, (int, float)) for number in numbers), "means that are no numbers")
    fits = version >= 4 and all(map(np.isfinite, numbers)) and all(number > 0 for number in entry["deviations"])
    if entry["kind"] == "image":
        sizes, count = [("height", 1, 4096), ("width", 1, 4096)], entry["channels"]
        fits = fits and count in (1, 3)
    else:
        sizes, count = [("rate", 1000, 192_000), ("fft", 2, 8192), ("bands", 1, 256)], entry["bands"]
        sizes += [("window", 2, entry["fft"]), ("hop", entry["rate"] / 500, entry["fft"])]
        fits = fits and not entry["fft"] % 2 and 0 <= entry["lowest"] < entry["highest"] <= entry["rate"] / 2
    if not fits or any(not low <= entry[name] <= high for name, low, high in sizes) or len(numbers) != 2 * count:
        raise RefusedError(f"{entry['kind']} out of bounds")


def decode_base64(text: str) -> bytes:
    """The file in a string of base64, which may be a data URL."""
    try:
        return base64.b64decode(re.sub(r"\Adata:[^,]*;base64,", "", text).encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise RefusedError("no base64") from error


def numeric_array(value: Any, low: float, high: float) -> np.ndarray:
    try:
        numbers = np.array(value, np.float64)
    except (TypeError, ValueError) as error:
        raise RefusedError("no array") from error
    refuse_if(not numbers.size or not ((numbers >= low) & (numbers <= high)).all(), "numbers out of range, or none")
    return numbers


def picture(value: Any, entry: Entry) -> np.ndarray:
    """The rows of a picture, numbers from 0 to 1."""
    if isinstance(value, str):
        try:
            image = ImageOps.exif_transpose(Image.open(io.BytesIO(decode_base64(value)), formats=["PNG", "JPEG"]))
            refuse_if(image.mode[0] in "IF", "more than 8 bits")
            if "background" in entry and image.has_transparency_data:
                colours = np.asarray(image.convert("RGBA"), int)
                v, a = colours[..., :3], colours[..., 3:]
                image = Image.fromarray(((v * a + entry["background"] * (255 - a) + 127) // 255).astype(np.uint8))
            is_grey = image.mode in ("1", "L", "LA")
            pixels = np.asarray(image.convert("L" if is_grey else "RGB"), np.float64)
        except (OSError, SyntaxError, ValueError) as error:
            raise RefusedError("no picture") from error
    else:
        white = entry.get("maximum", 255)
        pixels = numeric_array(value, 0, white)
        is_fraction = np.asarray(value).dtype.kind == "f" and 0 < pixels.max() <= 1
        refuse_if(is_fraction and "background" in entry and white == 255, "another range")
        pixels = pixels * (255 / white)
    refuse_if(pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)), "no rows of pixels")
    if pixels.ndim == 3 and entry["channels"] == 1:
        pixels = (pixels @ [19595, 38470, 7471] + 32768) // 65536
    if pixels.ndim == 2:
        pixels = np.stack([pixels] * entry["channels"], 2)
    rows, columns = map(resize_weights, pixels.shape[:2], (entry["height"], entry["width"]))
    return np.einsum("yi,xj,ijc->yxc", rows, columns, pixels / 255, optimize=True).reshape(entry["height"], -1)


def resize_weights(n: int, m: int) -> np.ndarray:
    """The weights (m, n) of n numbers for each of m."""
    scale = n / m
    distances = np.arange(n) + 0.5 - (np.arange(m)[:, None] + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(distances) / max(1, scale))
    return weights / weights.sum(1, keepdims=True)


def sound(value: Any, entry: Entry) -> np.ndarray:
    """The spectrum of a sound: the logarithm of its mel bands, a row for each frame."""
    if value == []:
        return np.zeros((0, entry["bands"]))
    if isinstance(value, str):
        samples = wav_samples(decode_base64(value), entry["rate"])
    elif isinstance(value, Mapping):
        samples = resample(numeric_array(value["array"], -8, 8), value["sampling_rate"], entry["rate"])
    else:
        samples = numeric_array(value, -8, 8)
    refuse_if(samples.ndim != 1, "no list of samples")
    window, fft = entry["window"], entry["fft"]
    hann = np.zeros(fft)
    hann[(fft - window) // 2 :][:window] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    padded = np.pad(samples, fft // 2)
    starts = range(0, len(samples) + 1, entry["hop"])
    power = np.array([np.abs(np.fft.rfft(padded[start : start + fft] * hann)) ** 2 for start in starts])
    return np.log(np.maximum(power @ mel_weights(entry), 1e-10))


def wav_samples(data: bytes, target_rate: int) -> np.ndarray:
    """The samples of a WAV at a rate."""
    refuse_if(data[:4] + data[8:12] != b"RIFFWAVE", "no WAV")
    whole, header, at = int.from_bytes(data[4:8], "little"), b"", 12
    ends = [len(data) if whole == 0 or whole >= 0x7FFFF000 else 8 + whole]
    while True:
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if name == b"data" and (size in (0x7FFFF000, 0xFFFFFFFF) or (size == 0 and ends[0] != 8 + whole)):
            size = (
                (ends[0] - at - 8) // int.from_bytes(header[12:14], "little") * int.from_bytes(header[12:14], "little")
            )
        ends.append(at + 8 + size)
        refuse_if(max(ends) > len(data), "a WAV that is shorter than it states")
        chunk, at = data[at + 8 : at + 8 + size], at + 8 + size + size % 2
        if name == b"data":
            break
        header = chunk if name == b"fmt " else header
    refuse_if(len(header) < 16, "no format")
    kind, channels, rate, _, step, bits = struct.unpack("<HHIIHH", header[:16])
    kind = int.from_bytes(header[24:26], "little") if kind == 0xFFFE else kind
    if (kind, bits) not in ((1, 8), (1, 16), (1, 24), (1, 32), (3, 32)) or not 1000 <= rate <= 192_000:
        raise RefusedError("a WAV of another format")
    refuse_if(not chunk or not channels or step != channels * bits // 8 or len(chunk) % step, "no whole samples")
    samples = [chunk[i : i + bits // 8] for i in range(0, len(chunk), bits // 8)]
    if kind == 3:
        numbers = np.frombuffer(chunk, "<f4").astype(np.float64)
    else:
        whole = [int.from_bytes(sample, "little", signed=bits > 8) - 128 * (bits == 8) for sample in samples]
        numbers = np.array(whole) / 2 ** (bits - 1)
    return resample(numeric_array(numbers.reshape(-1, channels).mean(1), -8, 8), rate, target_rate)


def resample(x: np.ndarray, rate: int, target_rate: int) -> np.ndarray:
    if rate == target_rate:
        return x
    c, m = 0.95 * min(1, target_rate / rate), np.arange(-(-len(x) * target_rate // rate))
    v = c * (np.arange(len(x)) - m[:, None] * rate / target_rate)  # (new samples, samples)
    return (c * np.sinc(v) * np.cos(np.pi * v / 32) ** 2 * (np.abs(v) < 16)) @ x


def mel_weights(entry: Entry) -> np.ndarray:
    """The weights (frequencies, bands) of Slaney's bands."""
    ends = [mel(entry[name]) for name in ("lowest", "highest")]
    h = np.array([hertz(point) for point in np.linspace(*ends, entry["bands"] + 2)])
    low, middle, high = h[:-2], h[1:-1], h[2:]
    f = (np.arange(entry["fft"] // 2 + 1) * entry["rate"] / entry["fft"])[:, None]
    return np.maximum(0, np.minimum((f - low) / (middle - low), (high - f) / (high - middle))) * 2 / (high - low)


def mel(f: float) -> float:
    return 3 * f / 200 if f < 1000 else 15 + 27 * np.log(f / 1000) / np.log(6.4)


def hertz(point: float) -> float:
    return 200 * point / 3 if point < 15 else 1000 * 6.4 ** ((point - 15) / 27)


# The bundle


class Bundle:
    """An open bundle: `Bundle(path)("a text", n_best=3)`."""

    def __init__(self, path: Path):
        self.manifest, files = open_bundle(path)
        answer, entries, field = self.manifest["answer"], self.manifest["inputs"], self.manifest["field"]
        is_joint = answer["kind"] == "joint"
        self.parts = {f"{head}.": part for head, part in answer["parts"].items()} if is_joint else {"": answer}
        for part in self.parts.values():
            check_answer_kind(part)
        for entry in entries.values():
            check_input_kind(entry, self.manifest["version"])
        self.generates = answer["kind"] == "generation"
        self.raw = bool(answer.get("every_token")) and answer["kind"] not in GENERATED_TEXT
        self.cache = self.manifest.get("cache", [])
        heads = [head for head, part in self.parts.items() if part["kind"] in GENERATED_TEXT]
        self.targets = {head: read_tokenizer(files[f"target_tokenizer.{head}json"]) for head in heads}
        self.sources: dict[str, Any] = {}
        fields = {f"{name}.": value for name, value in field.items()} if isinstance(field, dict) else {"": field}
        for source, value in fields.items():
            inputs = {name.removeprefix(source): e for name, e in entries.items() if name.startswith(source)}
            if "ids" in inputs:
                file, limits = files[f"tokenizer.{source}json"], self.manifest["limits"]
                self.sources[source] = TextSource(value, file, inputs, limits, self.generates, self.raw)
                targets = {f"target_tokenizer.{head}json": target for head, target in self.targets.items()}
                self.sources[source].target_tokenizers = targets
            else:
                self.sources[source] = NumericSource(value, inputs)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        model = files["model.onnx"]
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        graph_inputs = {v.name for v in self.session.get_inputs() + self.session.get_overridable_initializers()}
        self.outputs = [value.name for value in self.session.get_outputs()]
        if graph_inputs != {*entries, *self.manifest["options"], *(entry["input"] for entry in self.cache)}:
            raise RefusedError("the graph has other inputs")
        outputs = {entry["output"] for entry in self.cache}
        for head, part in self.parts.items():
            names = {entry["name"] for entry in part.get("fields", ()) if part["kind"] == "structured"}
            outputs |= {head + name for name in OUTPUTS[part["kind"]] | names}
        refuse_if(not outputs <= set(self.outputs), "the graph lacks an output")

    def __call__(self, record: Record, **options: Any) -> Any:
        return self.batch([record], **options)[0]

    def batch(self, records: Sequence[Record], **options: Any) -> list[Any]:
        """Answers, all from one run of the graph."""
        read = [[source.record(record) for source in self.sources.values()] for record in records]
        counts = [sum(len(tokens) for _, tokens in parts) for parts in read]
        refuse_if(any(count > self.manifest["limits"]["tokens"] for count in counts), "too long a record")
        complete = [all(tokens for _, tokens in parts) for parts in read]
        refuse_if(self.generates and not self.manifest["answer"]["adds_bos"] and not all(complete), "an empty prompt")
        kind = self.manifest["answer"]["kind"]
        runs_empty = self.generates or (self.raw and kind in ("label", "labels", "score", "vector"))
        rows = [i for i, is_complete in enumerate(complete) if runs_empty or is_complete]
        feeds = self.option_feeds(options, [read[i] for i in rows])
        several = {head: len(feeds.get(f"{head}n_best", ())) > 1 for head in self.parts}
        empty = {head: self.empty(part, several[head]) for head, part in self.parts.items()}
        answers: list[Any] = [by_head(empty) for _ in records]
        if not rows:
            return answers
        for number, (prefix, source) in enumerate(self.sources.items()):
            texts, tokens = zip(*(read[i][number] for i in rows), strict=True)
            inputs = source.inputs(tokens, texts, [records[i] for i in rows])
            feeds |= {prefix + name: array for name, array in inputs.items()}
        out = dict(zip(self.outputs, self.session.run(None, feeds), strict=True))
        for b, i in enumerate(rows):
            answers[i] = by_head({head: self.read(head, out, b, counts[i], *read[i][0]) for head in self.parts})
        return answers

    def option_feeds(self, options: Mapping[str, Any], read: Sequence[Sequence[tuple[str, list[Token]]]]) -> Arrays:
        """The inputs of the graph for decode options and these texts."""
        known = self.manifest["options"]
        types = {name: option["type"] for name, option in known.items()}
        strings = {name: option_texts(name, options[name]) for name in options if types.get(name) in TEXT_OPTIONS}
        seeds = {name: value for name, value in options.items() if name.rpartition(".")[2] == "seed"}
        plain = {name: value for name, value in options.items() if name not in strings and name not in seeds}
        feeds = option_inputs(known, plain)
        self.stops = [text for name, texts in strings.items() if types[name] == "texts" for text in texts]
        for name, texts in strings.items():
            head, kind = name[: name.rfind(".") + 1], types[name]
            if kind == "trie":
                feeds[name] = self.trie(head, texts, options)
            elif kind == "automaton" and texts:
                arcs = [self.arcs(head, texts, *parts[0]) for parts in read]
                feeds[name] = pad_grid(arcs, padded_size(arcs))
            elif kind == "texts" and texts and not options.get(f"{head}min_length"):
                pieces = enumerate(self.pieces(head))
                ends = [i for i, piece in pieces if any(text.encode() in piece for text in texts)]
                feeds[name] = np.array([ends], np.int64)
        for head, target in self.targets.items():
            ids = feeds.get(f"{head}prefix", np.zeros(0)).flatten().tolist()
            refuse_if(any(i in (0, 2, 3) or not 0 <= i < target.size for i in ids), "prefix")
        for name in options:
            head, last = name[: name.rfind(".") + 1], name.rpartition(".")[2]
            samples = last in ("temperature", "top_k", "top_p") and f"{head}uniform" in known
            if samples and f"{head}seed" not in seeds:
                refuse_if(options.get(f"{head}temperature") != 0, name)
                seeds[f"{head}seed"] = 0
        words = [[token.word for _, tokens in parts for token in tokens] for parts in read]
        for name, seed in seeds.items():
            head = name.removesuffix("seed")
            refuse_if(f"{head}uniform" not in known or type(seed) is not int or seed < 0, name)
            missing = {"beams": 1, "max_length": max(map(len, words), default=0) + 1}
            defaults = {name: known.get(head + name, {"default": size})["default"] for name, size in missing.items()}
            sizes = [len(feeds.get(head + name, range(size))) for name, size in defaults.items()]
            feeds[f"{head}uniform"] = uniform(seed, words, *sizes)
        return feeds

    def pieces(self, head: str) -> list[bytes]:
        target = self.targets[head]
        return [piece_bytes(target, target.id_to_token(i)) if i > 3 else b"" for i in range(target.size)]

    def trie(self, head: str, texts: Sequence[str], options: Mapping[str, Any]) -> np.ndarray:
        """The arcs (1, n, 3) of the beginnings of allowed texts."""
        excluded = ("stop", "forbidden", "prefix", "min_length", "no_repeat_ngram_size")
        whole = {tuple(self.targets[head].encode(text).ids) for text in texts}
        if not texts or any(1 in ids for ids in whole) or any(options.get(f"{head}{name}") for name in excluded):
            raise RefusedError(f"{head}allowed")
        beginnings = sorted({ids[:n] for ids in whole for n in range(len(ids) + 1)}, key=len)
        state = {ids: i for i, ids in enumerate(beginnings)}
        arcs = [(state[ids[:-1]], ids[-1], state[ids]) for ids in beginnings[1:]]
        return np.array([[(0, 0, 0), *arcs, *((state[ids], EOS, 0) for ids in whole)]], np.int64)

    def arcs(self, head: str, texts: Sequence[str], text: str, tokens: Tokens) -> list[tuple[int, int, int]]:
        """Arcs of every state, by which none of the texts is generated."""
        pieces = self.pieces(head)
        pieces += [piece_bytes(self.targets[head], word) for word in self.new_words(head, tokens)]
        forbidden = [forbidden_text.encode() for forbidden_text in texts]
        states = sorted({data[:i] for data in forbidden for i in range(len(data))}, key=len)

        def state(output: bytes) -> int:
            return max(i for i, beginning in enumerate(states) if output.endswith(beginning))

        prompt = replace_surrogates(self.prompt(text, tokens)[0]).encode() if self.generates else b""
        arcs = [(state(prompt), 0, 0), *([(-1, 1, -1)] if "[UNK]" in texts else [])]
        for (number, beginning), (i, piece) in itertools.product(enumerate(states), enumerate(pieces)):
            if piece:
                output = beginning + piece
                arcs.append((number, i, -1 if any(data in output for data in forbidden) else state(output)))
        return arcs

    def new_words(self, head: str, tokens: Tokens) -> list[str]:
        """The words of the source that are not in the target vocabulary, if words may be copied."""
        copies = self.parts[head].get("copies")
        return copy_ids(tokens, self.targets[head], copies["same"])[1] if copies else []

    def warning(self, kind: str, count: int) -> dict[str, str]:
        """The warning of an answer if the record is longer than those of training."""
        trained = self.manifest["limits"].get("trained", count)
        if count <= trained or kind not in ("text", "span-infilling", "pointers"):
            return {}
        return {"warning": f"longer than any input in training ({count:,} tokens; at most {trained:,} in training)"}

    def read(self, head: str, outputs: Arrays, b: int, count: int, text: str, tokens: Tokens) -> Any:
        """The answer of a head for row b, whose record has so many tokens."""
        out = {name.removeprefix(head): array[b] for name, array in outputs.items() if name.startswith(head)}
        part = self.parts[head]
        kind = part["kind"]
        match kind:
            case "label":
                best = int(out["label"])
                return {"label": part["labels"][best], "score": score(out["scores"][best])}
            case "labels":
                scores = [score(value) for value in out["scores"]]
                descending = sorted(np.flatnonzero(out["labels"]), key=lambda i: -scores[i])
                return [{"label": part["labels"][i], "score": scores[i]} for i in descending]
            case "score":
                return {"score": float(f"{out['score']:.6e}")}
            case "vector":
                return {"vector": [float(f"{number:.6e}") for number in out["vector"]]}
            case "candidate":
                cosines = np.clip(out["scores"].astype(np.float64), -1, 1)
                nearest = [
                    {**candidate(part["candidates"], number), "score": round(float(cosine), 6)}
                    for number, cosine in zip(out["nearest"].tolist(), cosines, strict=True)
                    if number >= 0
                ]
                return {**(nearest[0] if nearest else self.empty(part, False)), "nearest": nearest}
            case "structured":
                return structured(part["fields"], out, text, tokens)
            case "tags" | "spans":
                if len(out.get("paths", ())) < 2:
                    return items(part, text, tokens, out["tags"], out)
        logs = out["path_scores" if kind in ("tags", "spans") else "scores"]
        warning = self.warning(kind, count)
        answers = [
            self.alternative(head, k, out, text, tokens)
            | log_scored(part, log)
            | {"score": score(np.exp(log))}
            | warning
            for k, log in enumerate(logs)
            if log > NO_ALTERNATIVE or len(logs) == 1
        ]
        return answers if len(logs) > 1 else answers[0]

    def alternative(self, head: str, k: int, out: Arrays, text: str, tokens: Tokens) -> dict[str, Any]:
        """Alternative k of a head's answer, without its score."""
        part, target = self.parts[head], self.targets.get(head)
        if part["kind"] in ("tags", "spans"):
            return {part["kind"]: items(part, text, tokens, out["paths"][k])}
        if part["kind"] == "span":
            return extracted(text, tokens, int(out["starts"][k]), int(out["ends"][k]))
        if part["kind"] == "pointers":
            return pointed(part, text, tokens, out["pointers"][k].tolist())
        row = out["tokens"][k].tolist()
        if part["kind"] == "fill-mask":
            return filled(part["token"], target, text, tokens, row)
        if part["kind"] == "generation":
            answer = continued(target, row, *self.prompt(text, tokens), self.stops)
            return answer | scored_tokens(target, row, [], out.get("token_log_p", [()] * (k + 1))[k])
        answer = decoded(target, row, self.new_words(head, tokens))
        return answer | scored_tokens(
            target, row, self.new_words(head, tokens), out.get("token_log_p", [()] * (k + 1))[k]
        )

    def prompt(self, text: str, tokens: Tokens) -> tuple[str, list[int]]:
        """The text that is continued, of a pair the second, and its ids."""
        if not isinstance(self.manifest["field"], list):
            return text, [token.id for token in tokens]
        start = next((after.start for token, after in pairwise(tokens) if after.segment > token.segment), len(text))
        return text[start:], [token.id for token in tokens if token.segment == 2]

    def empty(self, part: Entry, several: bool) -> Any:
        """The answer to the empty text."""
        kind = part["kind"]
        if kind in ("score", "vector"):
            return {kind: None}
        if kind == "label":
            return {"label": None, "score": 0.0}
        if kind == "candidate":
            return {**dict.fromkeys(candidate(part["candidates"], 0)), "score": 0.0, "nearest": []}
        if kind in ("tags", "spans", "labels", "generation"):
            nothing = {kind: [], "score": 1.0} | log_scored(part, 0.0)
            return [nothing] if several else []
        if kind == "structured":
            answer: dict[str, Any] = {"words": []} if has_words(part["fields"]) else {}
            answer |= {f["name"]: [] if f["per"] == "pair" else None for f in part["fields"] if f["per"] != "word"}
        elif kind == "pointers":
            answer = {"pointers": [], "score": 1.0} | ({"words": []} if "axis" in part else {})
        elif kind == "span":
            answer = {"answer": "", "score": 1.0, "start": 0, "end": 0}
        else:
            answer = {"generated_text": "", "score": 1.0} | ({"words": []} if kind == "fill-mask" else {})
        if kind != "structured":
            answer |= log_scored(part, 0.0)
        return [answer] if several else answer

    def generate_in_chunks(self, record: Record, sizes: Sequence[int]) -> list[int]:
        """The tokens that continue a prompt, by as many runs of the graph as there are sizes, with the cache."""
        (text, tokens), generated = self.sources[""].record(record), list[int]()
        feeds = self.sources[""].inputs([tokens], [text], [record])
        for size in sizes:
            feeds["max_length"] = np.zeros(size, np.int64)
            out = dict(zip(self.outputs, self.session.run(None, feeds), strict=True))
            new = [token for token in out["tokens"][0, 0].tolist() if token]
            generated += new
            if len(new) < size or new[-1] == EOS:
                break
            feeds |= {"ids": np.array([new[-1:]], np.int64), "mask": np.ones((1, 1), np.bool_)}
            feeds |= {entry["input"]: out[entry["output"]] for entry in self.cache}
        return generated

    def tokenizers(self) -> list[AnyTokenizer]:
        """The tokenizers of all sources and heads."""
        return [source.tokenizer for source in self.sources.values() if "ids" in source.entries] + [
            *self.targets.values()
        ]

    def document(self, text: str) -> list[dict[str, Any]]:
        """Answers of the sentences, offsets into the whole text."""
        return [
            {**item, "start": item["start"] + a, "end": item["end"] + a}
            for a, b in sentences(text)
            for item in self(text[a:b])
        ]

    def failed_golden_examples(self) -> list[int]:
        """Numbers of the golden examples that this machine answers otherwise."""
        examples = enumerate(self.manifest["golden"])
        tolerance = 0.02 if self.manifest["parity"].get("precision") == "int8" else 0.0001
        return [
            i
            for i, e in examples
            if not matches_golden(self(e["record"], **e.get("options", {})), e["answer"], tolerance)
        ]


def open_bundle(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Check a bundle's manifest and files, and return both."""
    data = read_file(path / "bundle.json", 67_108_864)
    seal = SEAL.search(data)
    refuse_if(seal is None, "no seal")
    body = data[: seal.start()]
    refuse_if(hashlib.sha256(body).hexdigest().encode() != seal[1], "damaged bundle.json")
    try:
        manifest = json.loads((body + b"}").decode(), object_pairs_hook=unique_keys, parse_constant=refuse_constant)
    except ValueError as error:
        raise RefusedError(str(error)) from error
    if manifest.get("format") != "seqpipe-bundle" or manifest.get("version") not in (2, 3, 4, 5):
        raise RefusedError("another format or version")
    for key in {"graphs", "weights"} & manifest.keys():
        raise RefusedError(f"{key} is reserved")
    refuse_if(not isinstance(manifest.get("cache", []), list), "cache")
    for key, kind in KEYS.items():
        refuse_if(not isinstance(manifest.get(key), kind), key)
    files = {}
    for name, entry in manifest["files"].items():
        refuse_if(not NAME.fullmatch(name) or name == "bundle.json" or set(entry) != {"sha256", "bytes"}, name)
        files[name] = read_file(path / name, 1_900_000_000)
        if len(files[name]) != entry["bytes"] or hashlib.sha256(files[name]).hexdigest() != entry["sha256"]:
            raise RefusedError(f"damaged {name}")
    sources = {name.removesuffix("ids") for name in manifest["inputs"] if name == "ids" or name.endswith(".ids")}
    refuse_if(not {"model.onnx", *(f"tokenizer.{source}json" for source in sources)} <= set(files), "a file is missing")
    return manifest, files


def read_file(path: Path, max_bytes: int) -> bytes:
    if not path.exists() or not stat.S_ISREG(path.lstat().st_mode) or path.lstat().st_size > max_bytes:
        raise RefusedError(f"{path} is no regular file, or too long")
    return path.read_bytes()


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def refuse_constant(name: str) -> None:
    raise ValueError(name)


def check_answer_kind(part: Entry) -> None:
    refuse_if(part["kind"] not in OUTPUTS, f"answer kind {part['kind']!r}")
    for field in part.get("fields", []) if part["kind"] == "structured" else []:
        refuse_if(field["per"] not in ("text", "word", "pair"), f"a field of each {field['per']}")
        refuse_if(field["type"] not in ("label", "position", "number", "span"), f"a field of the type {field['type']}")


def check_input_kind(entry: Entry, version: int) -> None:
    kind = entry.get("kind", "chars")
    refuse_if(kind not in INPUT_KINDS, f"input kind {kind!r}")
    if kind == "ngrams":
        shortest, longest = entry["chars"] or (1, 1)
        refuse_if(not 0 <= entry["words"] <= 10 or not 1 <= shortest <= longest <= 20, "lengths of n-grams")
        unpack_hashes(entry["hashes"])
    if kind in ("image", "mel"):
        check_media_bounds(entry, version)
    refuse_if(entry.get("split", "lines") not in ("lines", "punctuation"), f"split {entry.get('split')!r}")


# Decode options


def option_texts(name: str, value: Any) -> list[str]:
    texts = [] if value is None else value if isinstance(value, list) else [value]
    refuse_if(not all(isinstance(text, str) and text for text in texts), name)
    return texts


def option_inputs(known: Mapping[str, Any], values: Mapping[str, Any]) -> Arrays:
    """The inputs for the values of the caller alone: the graph knows the defaults."""
    arrays = {}
    for name, value in values.items():
        option = known.get(name, {"type": None})
        kind = option["type"]
        if kind == "tokens" and isinstance(value, list):
            arrays[name] = np.array([value], np.int64).reshape(1, -1)
            continue
        largest = 3.4028234663852886e38 if kind == "float" else 2**63 - 1
        low, high = option.get("minimum"), option.get("maximum")
        refuse_if(kind not in OPTION_TYPES or isinstance(value, bool) != (kind == "bool"), name)
        refuse_if(not isinstance(value, OPTION_TYPES[kind]) or abs(value) > largest, name)
        refuse_if((low is not None and not value >= low) or (high is not None and not value <= high), name)
        dtype: Any = {"float": np.float32, "bool": np.bool_}.get(kind, np.int64)
        arrays[name] = np.zeros(value, dtype) if kind == "size" else np.array(value, dtype)
    current = {name: values.get(name, option["default"]) for name, option in known.items()}
    refuse_if({"n_best", "beams"} <= set(known) and current["n_best"] > current["beams"], "more answers than beams")
    if {"min_length", "max_length", "prefix"} <= set(known):
        prefix_length = arrays["prefix"].shape[1] if "prefix" in arrays else 0
        refuse_if(max(current["min_length"], prefix_length) >= current["max_length"], "max_length leaves no room")
    return arrays


def uniform(seed: int, texts: Sequence[Sequence[str]], beams: int, steps: int) -> np.ndarray:
    """Random numbers (B, K, N) of a seed and the words of each text."""
    samples = np.zeros((len(texts), beams, steps), np.float32)
    for b, words in enumerate(texts):
        lines = "".join(f"\n{word}" for word in words)
        for k, t in itertools.product(range(beams), range(steps)):
            digest = hashlib.sha256(f"{seed} {k} {t // 8}{lines}".encode()).digest()
            samples[b, k, t] = (struct.unpack_from("<I", digest, 4 * (t % 8))[0] >> 8) / 2**24
    return samples


def piece_bytes(target: AnyTokenizer, piece: str) -> bytes:
    """The bytes that a piece adds to a decoded text."""
    decoder = target.decoder
    if "ByteLevel" in decoder:
        printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
        letters = {chr(256 + i): byte for i, byte in enumerate(sorted({*range(256)} - printable))}
        return bytes(letters.get(letter, ord(letter) & 255) for letter in piece)
    if "ByteFallback" in decoder and re.fullmatch("<0x..>", piece):
        return bytes([int(piece[3:5], 16)])
    join = target.join
    neighbor = "a</w>" if "BPEDecoder" in decoder else "a"
    whole, after = join([neighbor, piece, neighbor]), join([neighbor, neighbor])[1:]
    return (whole[1 : len(whole) - len(after)] if whole.endswith(after) else join([neighbor, piece])[1:]).encode()


# From outputs to answers


def score(value: Any) -> float:
    return round(min(1.0, max(0.0, float(value))), 6)


def log_scored(part: Entry, log: float) -> dict[str, float]:
    """The logarithm of the probability of an alternative, if the answers of this head have it."""
    return {"log_score": float(log)} if part.get("log_score") is True else {}


def scored_tokens(
    target: AnyTokenizer, row: list[int], new_words: Sequence[str], logs: Sequence[float]
) -> dict[str, Any]:
    """The tokens of a row up to the end, each with its log-probability, if there are any."""
    V = target.size
    names = [new_words[i - V] if i >= V else target.id_to_token(i) for i in row if i]
    tokens = [{"token": name, "log_score": float(log)} for name, log in zip(names, logs, strict=False)]
    return {"tokens": tokens} if len(logs) else {}


def by_head(answers: Mapping[str, Any]) -> Any:
    """The answers of several heads by name, or the answer of the only head."""
    return answers[""] if "" in answers else {head[:-1]: answer for head, answer in answers.items()}


def candidate(columns: Mapping[str, Sequence[Any]], number: int) -> dict[str, Any]:
    """The entry of a candidate without its score."""
    return {name: columns[f"{name}s"][number] for name in ("text", "label", "answer") if f"{name}s" in columns}


def generated_ids(row: list[int]) -> list[int]:
    """The ids before the first [EOS], without special tokens."""
    return [token for token in (row[: row.index(EOS)] if EOS in row else row) if token > 3]


def decoded(target: AnyTokenizer, row: list[int], new_words: Sequence[str]) -> dict[str, Any]:
    """The text of a row of tokens, some of which may be copied words."""
    ids, V = generated_ids(row), target.size
    text = target.decode([i for i in ids if i < V])
    if any(i >= V for i in ids):
        strings = [new_words[i - V] if i >= V else target.id_to_token(i) for i in ids]
        text = target.join(strings)
    return {"generated_text": text if EOS in row else without_torn_character(target, ids, text)}


def continued(target: AnyTokenizer, row: list[int], prompt: str, prompt_ids: list[int], stops: list[str]) -> Entry:
    """The prompt and its continuation by a row of tokens, up to the first stop text."""
    ids = generated_ids(row)
    sequences = (prompt_ids, [*prompt_ids, *ids], ids)
    before, whole, alone = map(target.decode, sequences)
    text = whole[len(before) :] if whole.startswith(before) else alone
    text = text if EOS in row else without_torn_character(target, ids, text)
    text = text[: min([i for i in map(text.find, stops) if i >= 0], default=len(text))]
    return {"generated_text": prompt + text}


def without_torn_character(target: AnyTokenizer, ids: Sequence[int], text: str) -> str:
    """The text without the replacement characters of the beginning of a character at its end."""
    data = b"".join(piece_bytes(target, target.id_to_token(i)) for i in ids if i < target.size)
    for n in range(1, 4):
        lead = data[-n] if n <= len(data) else 0
        if lead >= 0xC0:
            size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            torn = size > n and "\ufffd" in text[-1:] and len(data[-n:].decode(errors="replace")) == 1
            return text[: -(1 if "ByteLevel" in target.decoder else n)] if torn else text
        if lead < 0x80:
            break
    return text


def filled(mask: str, tokenizer: AnyTokenizer, text: str, tokens: Tokens, row: Sequence[int]) -> dict[str, Any]:
    """The text with its gaps filled by the tokens of a row."""
    mask_id = tokenizer.token_to_id(mask)
    gaps = [t for t, token in enumerate(tokens) if token.id == mask_id]
    splits_words = tokenizer.model_type != "WordLevel"

    def decode(start: int, end: int) -> str:
        return tokenizer.decode(row[max(0, start) : end])

    def filling(t: int) -> str:
        if not splits_words:
            return decode(t, t + 1)
        before, both = decode(t - 1, t), decode(t - 1, t + 1)
        return (both[len(before) :] if both.startswith(before) else decode(t, t + 1)).strip()

    groups: list[list[int]] = []  # of adjacent gaps
    for t in gaps:
        if groups and groups[-1][-1] == t - 1 and tokens[t - 1].end == tokens[t].start:
            groups[-1].append(t)
        else:
            groups.append([t])
    parts, at = [], 0
    for group in groups:
        strings = [filling(t) for t in group]
        if splits_words and any("\ufffd" in string for string in strings):
            strings = [decode(group[0], group[-1] + 1).strip()]
        parts += [text[at : tokens[group[0]].start], *strings]
        at = tokens[group[-1]].end
    words = [decode(t, t + 1).strip() or decode(t, t + 1) for t in gaps]
    return {"generated_text": "".join([*parts, text[at:]]), "words": words}


def extracted(text: str, tokens: Tokens, first: int, last: int) -> dict[str, Any]:
    """The answer from the first to the last token, in the second text of a pair."""
    if first < 0:
        return {"answer": "", "start": 0, "end": 0}
    shift = next(token.end for token, after in pairwise(tokens) if after.segment > token.segment)
    start, end = tokens[first].start, tokens[last].end
    end -= len(re.findall(f"[{WHITE}]*$", text[start:end])[0])
    return {"answer": text[start:end], "start": start - shift, "end": end - shift}


def pointed(part: Entry, text: str, tokens: Tokens, row: list[int]) -> dict[str, Any]:
    """Positions up to the first -1, and of a text the words or tokens there."""
    positions = row[: row.index(-1)] if -1 in row else row
    answer: dict[str, Any] = {"pointers": positions}
    if "axis" in part:
        words = [token.place for token in tokens if token.place]
        places = words if part["axis"] == "word_count" else [(token.start, token.end) for token in tokens]
        answer["words"] = [text[slice(*places[i])] for i in positions]
    return answer


def has_words(fields: Sequence[Entry]) -> bool:
    """Return True if an answer of these fields lists the words."""
    return any(field["per"] != "text" or field["type"] in ("position", "span") for field in fields)


def structured(fields: Sequence[Entry], out: Arrays, text: str, tokens: Tokens) -> dict[str, Any]:
    """Every field: of the text, of its words, of its pairs of words."""
    places = [token.place for token in tokens if token.place]
    words: list[dict[str, Any]] = [{"word": text[a:b], "start": a, "end": b} for a, b in places]
    answer: dict[str, Any] = {"words": words} if has_words(fields) else {}

    def value(field: Entry, cell: Any) -> Any:
        if field["type"] == "number":
            return float(f"{float(cell):.6e}")
        if field["type"] == "label":
            return field["labels"][int(cell)]
        if field["type"] == "position":
            return int(cell) if cell >= 0 else None
        first, last = cell.tolist()
        if first < 0:
            return None
        start, end = places[first][0], places[last][1]
        return {"text": text[start:end], "start": start, "end": end}

    def named(key: str, field: Entry, score_key: str, at: tuple[int, ...]) -> dict[str, Any]:
        """The value of a cell and its score, under these keys."""
        scores = out.get(f"{field['name']}_scores")
        return {key: value(field, out[field["name"]][at])} | ({} if scores is None else {score_key: score(scores[at])})

    for field in fields:
        name = field["name"]
        if field["per"] == "text":
            answer |= named(name, field, f"{name}_score", ())
        elif field["per"] == "word":
            for i, word in enumerate(words):
                word |= named(name, field, f"{name}_score", (i,))
        else:
            key = "label" if field["type"] == "label" else "value"
            pairs = itertools.product(range(len(words)), repeat=2)
            answer[name] = [
                {"from": i, "to": j} | named(key, field, "score", (i, j)) for i, j in pairs if out[name][i, j] != 0
            ]
    return answer


def items(part: Entry, text: str, tokens: Tokens, path: np.ndarray, out: Arrays | None = None) -> list[dict[str, Any]]:
    """The tags or spans of a sequence of tags, with their scores if there are outputs."""
    words = [token.place for token in tokens if token.place]
    tags = [part["labels"][tag] for tag in path[: len(words)]]
    key = "entity" if part["kind"] == "tags" else "entity_group"
    places = [(tag, i, i) for i, tag in enumerate(tags)] if key == "entity" else spans(tags)
    answers = []
    for label, i, j in places:
        start, end = words[i][0], words[j][1]
        item = {key: label, "word": text[start:end], "start": start, "end": end}
        if out is not None:
            item["score"] = score(out["scores"][i] if key == "entity" else np.exp(out["opens"][i] + out["closes"][j]))
        answers.append(item)
    return answers


def spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Label, first and last token of each span."""
    labelled: list[tuple[str, int, int]] = []
    before: tuple[str, str] | None = None
    for i, tag in enumerate(tags):
        current = split_tag(tag)
        if current is not None:
            if current[0] in "BS" or before is None or before[0] in "ES" or before[1] != current[1]:
                labelled.append((current[1], i, i))
            else:
                labelled[-1] = (current[1], labelled[-1][1], i)
        before = current
    return labelled


def split_tag(tag: str) -> tuple[str, str] | None:
    """Prefix and label; None if the tag is outside."""
    prefix, _, label = tag.partition("-")
    if prefix not in tuple("BIMESLU"):
        return None
    return {"M": "I", "L": "E", "U": "S"}.get(prefix, prefix), label or "_"


def matches_golden(answer: Any, golden: Any, tolerance: float = 0.0001) -> bool:
    """Compare an answer with a golden example."""
    if isinstance(answer, float) and isinstance(golden, float):
        return abs(answer - golden) <= tolerance * max(1, abs(golden))
    if isinstance(answer, list) and isinstance(golden, list):
        return len(answer) == len(golden) and all(
            matches_golden(*pair, tolerance) for pair in zip(answer, golden, strict=True)
        )
    if isinstance(answer, dict) and isinstance(golden, dict):
        same = answer.keys() == golden.keys()
        return same and all(matches_golden(answer[key], golden[key], tolerance) for key in answer)
    return (type(answer) is type(golden) or isinstance(answer, str)) and bool(answer == golden)
