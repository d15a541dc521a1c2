"""A reader of tokenizer.json, written from docs/internals/bundle-text.md alone, without seqpipe and `tokenizers`."""

import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import pairwise
from typing import Any, NamedTuple

import regex

SPACES = r"\x09-\x0d\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # of `\s` and of the library
CLASSES = {  # of Oniguruma, in terms of Unicode's properties
    "w": r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}",
    "d": r"\p{Nd}",
    "s": SPACES,
}
FIGURES = r"\xb2\xb3\xb9\xbc-\xbe"  # which `\w` alone matches too
PUNCTUATION = r"[!-/:-@\[-`{-~\p{P}]"
IDEOGRAPHS = (
    r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f\U0002b920-\U0002ceaf"
    r"\U0002f800-\U0002fa1f]"
)
BYTE_LEVEL_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CLEANUPS = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " do not", " 's", " 've", " 're")
CLEANED = (".", "?", "!", ",", "'", "n't", "'m", " don't", "'s", "'ve", "'re")
AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
LETTERS = {byte: chr(byte) for byte in PRINTABLE}
LETTERS |= {byte: chr(256 + i) for i, byte in enumerate(sorted({*range(256)} - {*PRINTABLE}))}
BYTES = {letter: byte for byte, letter in LETTERS.items()}

Offsets = tuple[int, int]
Point = tuple[str, int, int]  # a code point of a normalised text, and where its origin starts and ends in the text
Points = list[Point]
Token = tuple[int, int, int]  # id, first point and end within a part
Step = Callable[[Points], Points]
Splitter = Callable[[list[Points]], list[Points]]
Entry = Mapping[str, Any]


class UnknownPartError(Exception):
    """The page does not describe this part of a tokenizer."""


class Encoding(NamedTuple):
    """Tokens of a text: their ids, their offsets, and the numbers of the parts that they belong to."""

    ids: list[int]
    offsets: list[Offsets]
    word_ids: list[int]


class Tokenizer:
    """The tokenizer of a file; raises UnknownPartError for a part that the page does not describe."""

    def __init__(self, data: bytes):
        content = json.loads(data)
        settings = {key: content.get(key) for key in ("truncation", "padding", "post_processor")}
        if any(settings.values()):
            raise UnknownPartError(f"{settings}")
        self.model_type: str = content["model"]["type"]
        self.steps, self.split = normalizer(content["normalizer"]), pre_tokenizer(content["pre_tokenizer"])
        self.vocabulary, self.tokenize = model(content["model"])
        self.decoders, self.decoder = decoder(content["decoder"]), json.dumps(content["decoder"])
        added = content["added_tokens"]
        for token in added:
            if token["normalized"] or token["single_word"]:
                raise UnknownPartError(f"added token {token}")
        self.vocabulary |= {token["content"]: token["id"] for token in added}
        self.pieces = {i: token for token, i in self.vocabulary.items()}
        self.size = len(self.vocabulary)
        longest_first = sorted(added, key=lambda token: -len(token["content"]))
        self.added = regex.compile("|".join(map(added_pattern, longest_first))) if added else None

    def token_to_id(self, token: str) -> int | None:
        return self.vocabulary.get(token)

    def id_to_token(self, i: int) -> str:
        return self.pieces[i]

    def normalize(self, text: str) -> str:
        return written(self.steps(points_of(text)))

    def origins(self, text: str) -> set[int]:
        """The code points of a text of which its normalisation leaves something."""
        return {i for _, a, b in self.steps(points_of(text)) for i in range(a, b)}

    def encode(self, text: str) -> Encoding:
        return self.encode_parts([text])

    def encode_words(self, strings: Sequence[str]) -> Encoding:
        """The encoding of a pre-split text; words are the strings, from whose beginnings offsets count."""
        return self.encode_parts(strings, pre_split=True)

    def encode_parts(self, strings: Sequence[str], pre_split: bool = False) -> Encoding:
        encoding, word = Encoding([], [], []), 0

        def add(i: int, start: int, end: int, number: int) -> None:
            encoding.ids.append(i)
            encoding.offsets.append((start, end))
            encoding.word_ids.append(number)

        for number, string in enumerate(strings):
            points, at = points_of(string), 0
            matches = [*self.added.finditer(string)] if self.added else []
            for match in [*matches, None]:
                end = match.start() if match else len(points)
                for part in filter(None, self.split([self.steps(points[at:end])])):
                    for i, a, b in self.tokenize(written(part)):
                        add(i, part[a][1], part[b - 1][2], number if pre_split else word)
                    word += 1
                if match:
                    add(self.vocabulary[match[0].strip()], *match.span(), number if pre_split else word)
                    word, at = word + 1, match.end()
        return encoding

    def join(self, strings: Sequence[str]) -> str:
        """The text of tokens in a row."""
        return "".join(self.decoders([*strings]))

    def decode(self, ids: Sequence[int]) -> str:
        return self.join([self.pieces[i] for i in ids])


def points_of(text: str) -> Points:
    return [(point, i, i + 1) for i, point in enumerate(text)]


def written(points: Points) -> str:
    return "".join(point for point, _, _ in points)


def added_pattern(token: Entry) -> str:
    left, right = (rf"[{SPACES}]*" if token[key] else "" for key in ("lstrip", "rstrip"))
    return left + regex.escape(token["content"]) + right


@lru_cache(maxsize=100)
def oniguruma(pattern: str) -> regex.Pattern[str]:
    """The pattern with the classes of Oniguruma spelt out."""
    depth = 0  # of brackets

    def spelled(match: regex.Match[str]) -> str:
        nonlocal depth
        sign = match[0]
        depth += {"[": 1, "]": -1}.get(sign, 0)
        letter = sign[1:].lower()
        if letter not in CLASSES:
            return sign
        negated = "^" if sign[1].isupper() else ""
        return f"[{negated}{CLASSES[letter]}{FIGURES if letter == 'w' and not depth else ''}]"

    return regex.compile("(?V1)" + regex.sub(r"\\.|[\[\]]", spelled, pattern))


def pattern_of(entry: Entry) -> regex.Pattern[str]:
    return oniguruma(entry["Regex"]) if "Regex" in entry else regex.compile(regex.escape(entry["String"]))


# Normalizers


def each(change: Callable[[str], Iterable[str]]) -> Step:
    """Replace each code point by any number, all of the same origin."""
    return lambda points: [(new, a, b) for point, a, b in points for new in change(point)]


def matched(pattern: str, replace: Callable[[str], str]) -> Step:
    """Replace the code points that match."""
    compiled = oniguruma(pattern)
    return each(lambda point: replace(point) if compiled.fullmatch(point) else point)


def normalizer(entry: Entry | None) -> Step:
    if entry is None:
        return lambda points: points
    match entry["type"]:
        case "Sequence":
            steps = [normalizer(step) for step in entry["normalizers"]]
            return lambda points: reduce(lambda result, step: step(result), steps, points)
        case "NFC" | "NFD" | "NFKC" | "NFKD" as form:
            return lambda points: unicode_form(form, points)
        case "Lowercase":
            return each(str.lower)
        case "StripAccents":
            return matched(r"\p{M}", lambda _: "")
        case "Replace":
            return lambda points: replaced(pattern_of(entry["pattern"]), entry["content"], points)
        case "BertNormalizer":
            return bert_normalizer(entry)
    raise UnknownPartError(f"normalizer {entry['type']}")


def replaced(pattern: regex.Pattern[str], content: str, points: Points) -> Points:
    """Replace each match by a text whose code points have the last origin of the match."""
    result, at = [], 0
    for match in pattern.finditer(written(points)):
        a, b = match.span()
        result += [*points[at:a], *((new, *points[b - 1][1:]) for new in content)]
        at = b
    return result + points[at:]


def bert_normalizer(entry: Entry) -> Step:
    steps = []
    if entry["clean_text"]:
        steps += [matched(r"[\p{Cc}\p{Cf}\p{Co}\ufffd--[\t\n\r]]", lambda _: "")]
        steps += [matched(rf"[{SPACES}]", lambda _: " ")]
    if entry["handle_chinese_chars"]:
        steps += [matched(IDEOGRAPHS, lambda point: f" {point} ")]
    strips = entry["lowercase"] if entry["strip_accents"] is None else entry["strip_accents"]
    if strips:
        steps += [lambda points: unicode_form("NFD", points), matched(r"\p{Mn}", lambda _: "")]
    if entry["lowercase"]:
        steps += [each(str.lower)]
    return lambda points: reduce(lambda result, step: step(result), steps, points)


def unicode_form(form: str, points: Points) -> Points:
    """Bring a text to a Unicode normalization form; the origins are those of as many code points in order."""
    decomposition = "NFKD" if "K" in form else "NFD"
    changes: list[list[Any]] = []  # a code point, and how many of the text it stands for: 1, or 0 if one more of it
    for point, _, _ in points:
        for k, part in enumerate(unicodedata.normalize(decomposition, point)):
            changes.append([part, int(k == 0)])
    start = 0
    for i in range(len(changes) + 1):  # runs of marks in canonical order
        if i == len(changes) or not unicodedata.combining(changes[i][0]):
            changes[start:i] = sorted(changes[start:i], key=lambda change: unicodedata.combining(change[0]))
            start = i + 1
    changes = composed(changes) if form in ("NFC", "NFKC") else changes
    result, at = Points(), 0
    for point, count in changes:
        origin = points[at if count > 0 else max(0, at - 1)][1:]
        result.append((point, *origin))
        at += max(0, count)
    return result


def composed(changes: list[list[Any]]) -> list[list[Any]]:
    """Compose each starter with the marks after it that nothing blocks."""
    result: list[list[Any]] = []
    starter, last = None, 0  # the class of the last mark that was not composed
    for point, count in changes:
        order = unicodedata.combining(point)
        adjacent = starter is not None and result[-1] is starter
        if starter is not None and (adjacent or 0 < last < order):
            both = unicodedata.normalize("NFC", starter[0] + point)
            if len(both) == 1:
                starter[0], starter[1] = both, starter[1] + count
                continue
        result.append([point, count])
        if order == 0:
            starter = result[-1]
        last = order
    return result


# Pre-tokenizers


def parts_of(found: Iterable[Offsets], points: Points) -> list[tuple[Points, bool]]:
    """Matches and the points between them, in order; True: a match."""
    parts, at = [], 0
    for a, b in found:
        parts += [(points[at:a], False), (points[a:b], True)]
        at = b
    return [part for part in (*parts, (points[at:], False)) if part[0]]


def by_pattern(pattern: regex.Pattern[str], behavior: str, invert: bool = False) -> Splitter:
    def split(points: Points) -> list[Points]:
        parts = parts_of([match.span() for match in pattern.finditer(written(points)) if match[0]], points)
        if behavior == "Isolated":
            return [part for part, _ in parts]
        if behavior == "Removed":
            return [part for part, is_match in parts if is_match is invert]
        if behavior == "MergedWithNext":  # a match begins the part after it
            merged, ended = list[Points](), True
            for part, is_match in parts:
                if is_match or ended:
                    merged.append(part)
                else:
                    merged[-1] = merged[-1] + part
                ended = not is_match
            return merged
        raise UnknownPartError(f"behavior {behavior}")

    split([])  # refuses another behavior
    return lambda texts: [part for points in texts for part in split(points)]


def pre_tokenizer(entry: Entry | None) -> Splitter:
    if entry is None:
        return lambda texts: texts
    match entry["type"]:
        case "Sequence":
            steps = [pre_tokenizer(step) for step in entry["pretokenizers"]]
            return lambda texts: reduce(lambda parts, step: step(parts), steps, texts)
        case "Split":
            return by_pattern(pattern_of(entry["pattern"]), entry["behavior"], entry["invert"])
        case "Punctuation" if entry["behavior"] == "Isolated":
            return by_pattern(oniguruma(PUNCTUATION), "Isolated")
        case "BertPreTokenizer":
            words = by_pattern(oniguruma(r"\s"), "Removed")
            marks = by_pattern(oniguruma(PUNCTUATION), "Isolated")
            return lambda texts: marks(words(texts))
        case "ByteLevel" if not entry["add_prefix_space"] and entry["use_regex"]:
            words = by_pattern(oniguruma(BYTE_LEVEL_WORDS), "Isolated")
            letters = each(lambda point: (LETTERS[byte] for byte in point.encode()))
            return lambda texts: [letters(points) for points in words(texts)]
        case "Metaspace" if entry["prepend_scheme"] == "never":
            sign = entry["replacement"]
            spaces = matched(" ", lambda _: sign)
            if not entry["split"]:
                return lambda texts: [spaces(points) for points in texts]
            words = by_pattern(regex.compile(regex.escape(sign)), "MergedWithNext")
            return lambda texts: words([spaces(points) for points in texts])
    raise UnknownPartError(f"pre_tokenizer {entry}")


# Models


def model(entry: Entry) -> tuple[dict[str, int], Callable[[str], list[Token]]]:
    """The vocabulary, and the tokens of a part."""
    match entry["type"]:
        case "WordLevel":
            vocabulary = dict(entry["vocab"])
            unknown = vocabulary[entry["unk_token"]]
            return vocabulary, lambda part: [(vocabulary.get(part, unknown), 0, len(part))]
        case "WordPiece":
            return dict(entry["vocab"]), lambda part: word_pieces(entry, part)
        case "BPE" if not any(entry.get(key) for key in ("byte_fallback", "ignore_merges", "fuse_unk", "dropout")):
            if entry["unk_token"] is None and not {*BYTES} <= {*entry["vocab"]}:
                raise UnknownPartError("model BPE without `unk_token` and without all letters")
            ranks = {tuple(pair): i for i, pair in enumerate(entry["merges"])}
            return dict(entry["vocab"]), lambda part: merged_pieces(entry, ranks, part)
        case "Unigram" if not entry.get("byte_fallback"):
            pieces = {piece: (i, score) for i, (piece, score) in enumerate(entry["vocab"])}
            lowest = min(score for _, score in entry["vocab"]) - 10
            vocabulary = {piece: i for piece, (i, _) in pieces.items()}
            return vocabulary, lambda part: likeliest_pieces(pieces, lowest, entry["unk_id"], part)
    raise UnknownPartError(f"model {entry['type']}")


def word_pieces(entry: Entry, part: str) -> list[Token]:
    """The longest piece at each place, or the unknown token for the whole part."""
    vocabulary, prefix, tokens, a = entry["vocab"], entry["continuing_subword_prefix"], list[Token](), 0
    unknown = [(vocabulary[entry["unk_token"]], 0, len(part))]
    if len(part) > entry["max_input_chars_per_word"]:
        return unknown
    while a < len(part):
        ends = (b for b in range(len(part), a, -1) if (prefix if a else "") + part[a:b] in vocabulary)
        b = next(ends, a)
        if b == a:
            return unknown
        tokens.append((vocabulary[(prefix if a else "") + part[a:b]], a, b))
        a = b
    return tokens


def merged_pieces(entry: Entry, ranks: Mapping[tuple[str, ...], int], part: str) -> list[Token]:
    """Single code points, of which the pair of the lowest rank is merged, the first one first."""
    vocabulary, prefix, suffix = entry["vocab"], *(entry[key] or "" for key in AFFIXES)
    last, pieces = len(part) - 1, []
    for i, point in enumerate(part):
        pieces.append(((prefix if i else "") + point + (suffix if i == last else ""), i, i + 1))
    while True:
        pairs = enumerate(pairwise(pieces))
        known = [(ranks[left[0], right[0]], i) for i, (left, right) in pairs if (left[0], right[0]) in ranks]
        if not known:
            return [(vocabulary.get(piece, vocabulary.get(entry["unk_token"])), a, b) for piece, a, b in pieces]
        _, i = min(known)
        (left, a, _), (right, _, b) = pieces[i : i + 2]
        pieces[i : i + 2] = [(left + right.removeprefix(prefix), a, b)]


def likeliest_pieces(pieces: Mapping[str, tuple[int, float]], lowest: float, unknown: int, part: str) -> list[Token]:
    """The pieces of the greatest sum of scores; successive unknown code points are one token."""
    longest = max(map(len, pieces))
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # the sum up to a place, where its last piece starts, and its id
    for b in range(1, len(part) + 1):
        options = []
        for a in range(max(0, b - longest), b):
            i, score = pieces.get(part[a:b], (unknown, lowest))
            if i != unknown or b - a == 1:
                options.append((best[a][0] + (lowest if i == unknown else score), a, i))
        best.append(max(options, key=lambda option: option[0]))
    tokens, b = list[Token](), len(part)
    while b > 0:
        _, a, i = best[b]
        if tokens and i == unknown == tokens[-1][0]:
            tokens[-1] = (i, a, tokens[-1][2])
        else:
            tokens.append((i, a, b))
        b = a
    return tokens[::-1]


# Decoders


def decoder(entry: Entry | None) -> Callable[[list[str]], list[str]]:
    if entry is None:
        return lambda tokens: [" ".join(tokens)]
    match entry["type"]:
        case "Sequence":
            steps = [decoder(step) for step in entry["decoders"]]
            return lambda tokens: reduce(lambda result, step: step(result), steps, tokens)
        case "Fuse":
            return lambda tokens: ["".join(tokens)]
        case "Replace":
            pattern, content = pattern_of(entry["pattern"]), entry["content"]
            return lambda tokens: [pattern.sub(lambda _: content, token) if token else "" for token in tokens]
        case "Strip":
            return lambda tokens: [stripped(entry, token) for token in tokens]
        case "WordPiece":
            return lambda tokens: [joined_word_piece(entry, token, k == 0) for k, token in enumerate(tokens)]
        case "BPEDecoder":
            suffix = entry["suffix"]
            return lambda tokens: [
                token.replace(suffix, " " if k + 1 < len(tokens) else "") for k, token in enumerate(tokens)
            ]
        case "ByteLevel":
            return lambda tokens: [b"".join(map(bytes_of, tokens)).decode(errors="replace")]
        case "Metaspace" if entry["prepend_scheme"] == "never":
            return lambda tokens: [token.replace(entry["replacement"], " ") for token in tokens]
    raise UnknownPartError(f"decoder {entry}")


def stripped(entry: Entry, token: str) -> str:
    """The token without so many signs at its start and its end at most."""
    start, end = 0, len(token)
    while start < min(entry["start"], end) and token[start] == entry["content"]:
        start += 1
    while end > max(start, len(token) - entry["stop"]) and token[end - 1] == entry["content"]:
        end -= 1
    return token[start:end]


def joined_word_piece(entry: Entry, token: str, is_first: bool) -> str:
    prefix = entry["prefix"]
    if not is_first:
        token = token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
    if entry["cleanup"]:
        for before, after in zip(CLEANUPS, CLEANED, strict=True):
            token = token.replace(before, after)
    return token


def bytes_of(token: str) -> bytes:
    """The bytes that the letters of a token represent, or those of its text if one represents none."""
    return bytes(BYTES[letter] for letter in token) if {*token} <= {*BYTES} else token.encode()
