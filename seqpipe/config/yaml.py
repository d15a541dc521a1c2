"""Convert YAML to plain data with the position of each key and value, and back; errors come with a fix."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.scanner import Scanner

from seqpipe.errors import ConfigError, Problem

# Values as YAML text and back: the meaning of a plain scalar, and the writing of values.

Plain = Any  # None, bool, int, float, str, list or dict of these

_WORDS: dict[str, Plain] = {"": None, "~": None}
_WORDS |= dict.fromkeys(("null", "Null", "NULL"))
_WORDS |= dict.fromkeys(("true", "True", "TRUE"), True)
_WORDS |= dict.fromkeys(("false", "False", "FALSE"), False)
_WORDS |= {sign + form: float(sign + "inf") for sign in ("", "+", "-") for form in (".inf", ".Inf", ".INF")}
_WORDS |= dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan)
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def resolve(text: str) -> Plain:
    """Resolve a plain (unquoted) scalar by YAML 1.2's core schema; ValueError for an ambiguous one, with the fix."""
    if text in _WORDS:
        return _WORDS[text]
    if _LEADING_ZERO.fullmatch(text):
        fix = f"quote it ('{text}') if it is text, or drop the leading zero"
        raise ValueError(f"{text} could mean several numbers; {fix}")
    if _INT.fullmatch(text):
        number = int(text, 0) if len(text) < 100 else 1 << 64
        if not -(1 << 63) <= number < 1 << 63:
            raise ValueError("this number is too large (beyond 64 bits); quote it if it is text")
        return number
    if _FLOAT.fullmatch(text):
        if math.isinf(float(text)):
            fix = "write .inf if infinity is meant, or quote it if it is text"
            raise ValueError(f"this number is too large for a float; {fix}")
        return float(text)
    return text


def dump(data: Plain) -> str:
    """Return YAML text that `parse` reads as the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def plain(value: Any, path_text: Callable[[FilePath], str] = FilePath.as_posix) -> Plain:
    """Return an option's value as plain YAML data, with paths as text."""
    if isinstance(value, FilePath):
        return path_text(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, path_text) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, path_text) for item in value]
    return value


def flatten(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the single values of mappings and lists, with dotted keys."""
    if isinstance(value, (Mapping, list, tuple)) and value:
        for name, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from flatten(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def format_value(value: Plain) -> str:
    """Format a value in YAML, shortened."""
    if isinstance(value, str):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}…'"
    if isinstance(value, (list, dict)) and len(json.dumps(value)) > 60:
        return "a list" if isinstance(value, list) else "a mapping"
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=1000)
    return text.removesuffix("...\n").strip()


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which also quotes texts that only YAML 1.2 reads as a number."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def text(self, data: str) -> yaml.Node:
        try:
            plain = resolve(data) == data
        except ValueError:
            plain = False
        style = '"' if not data.isprintable() else None if plain else "'"  # in single quotes U+0085 would be folded
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.text)


# Syntax errors of a YAML file in plain words, each with its position and the fix.

# A part of PyYAML's message; our message; whether its first mark is the position.
_SYNTAX_FIXES: Sequence[tuple[str, str, bool]] = (
    ("while scanning an alias", "a value cannot start with '*'; put it in quotes", True),
    ("while scanning an anchor", "a value cannot start with '&'; put it in quotes", True),
    ("scanning a quoted scalar found unexpected", "this quote is never closed; add the closing quote", True),
    ("found character '\\t' that cannot", "a tab is not allowed here; indent with spaces", False),
    ("found character '%' that cannot", "a value cannot start with '%'; put it in quotes", False),
    ("found character '@' that cannot", "a value cannot start with '@'; put it in quotes", False),
    ("found character '`' that cannot", "a value cannot start with '`'; put it in quotes", False),
    ("expected ',' or ']', but got '<stream end>'", "this '[' is never closed; add the ']'", True),
    ("expected ',' or '}', but got '<stream end>'", "this '{' is never closed; add the '}'", True),
    ("expected ',' or ']'", "a ',' or ']' is missing before this", False),
    ("expected ',' or '}'", "a ',' or '}' is missing before this", False),
    ("but found ']'", "there is no '[' for this ']'; delete it", False),
    ("but found '}'", "there is no '{' for this '}'; delete it", False),
    (
        "mapping values are not allowed",
        "a second ':' in one value, or a line indented too far; put text with ': ' in quotes",
        False,
    ),
    ("expected <block end>", "this line does not match those above it; check its indentation", False),
    ("could not find expected ':'", "a key without a value; write 'key: value'", True),
    ("unknown escape character", "no such escape in double quotes; use single quotes, or double the backslash", False),
    (
        "expected escape sequence",
        "this escape in double quotes is not complete; use single quotes, or double the backslash",
        False,
    ),
    ("expected '<document start>'", "text after the end of the document; delete the '...' line", False),
    ("expected the node content, but found '<stream end>'", "the text ends here, with a bracket still open", False),
    ("expected the node content", "a value is missing before this", False),
)


def syntax_problem(error: yaml.MarkedYAMLError, file: str) -> Problem:
    said = f"{error.context or ''} {error.problem or ''}".strip()
    fixes = ((fix, is_first) for part, fix, is_first in _SYNTAX_FIXES if part in said)
    message, at_context = next(fixes, (said, False))
    mark = (error.context_mark if at_context else None) or error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    return Problem(file, line, column, "", message)


# Reader of YAML: plain data with the position of every key and value; dangerous and surprising syntax is refused.
#
# Read from parser events without composing: no tags, anchors, aliases or merge keys, no duplicate key, one document,
# YAML 1.2's core scalars (`no` and `off` are text, `1e-3` is a number), at most 1 MB, 40 deep and 50,000 values.

MAX_BYTES = 1_000_000
MAX_DEPTH = 40
MAX_NODES = 50_000

Path = tuple["str | int", ...]


@dataclass(frozen=True)
class Spot:
    """Position in a file: line and column from 1; both 0 for the command line."""

    file: str
    line: int
    column: int


@dataclass
class Tree:
    """Plain data with positions: `keys` holds the spot of each key, `values` of each value, both by path."""

    file: str
    data: Plain = None
    keys: dict[Path, Spot] = field(default_factory=dict)
    values: dict[Path, Spot] = field(default_factory=dict)

    def spot(self, path: Path, *, key: bool = False) -> Spot:
        """Return the spot of the value at `path` (of its key, if `key`), or of the nearest container."""
        for length in range(len(path), -1, -1):
            at = path[:length]
            spot = (self.keys.get(at) if key or length < len(path) else None) or self.values.get(at)
            if spot:
                return spot
        return Spot(self.file, 0, 0)

    def problem(self, path: Path, message: str, *, key: bool = False) -> Problem:
        spot = self.spot(path, key=key)
        return Problem(spot.file, spot.line, spot.column, key_text(path), message)


def key_text(path: Path) -> str:
    return ".".join(map(str, path))


def parse_tree(data: bytes, file: str) -> Tree:
    """Parse one YAML file to a tree; ConfigError lists all problems that could be found."""
    tree, problems = read_tree(data, file)
    if problems:
        raise ConfigError(problems)
    return tree


def read_tree(data: bytes, file: str) -> tuple[Tree, list[Problem]]:
    """Return the tree and the problems that allow reading to continue; ConfigError for any other."""
    builder = _Builder(file)
    text = _decode(data, file)
    try:
        builder.document(text)
    except yaml.MarkedYAMLError as error:
        raise ConfigError([*builder.problems, syntax_problem(error, file)]) from None
    except yaml.reader.ReaderError as error:
        line, column = _line_and_column(text[: error.position])
        message = f"a file cannot contain the character U+{error.character:04X}; write an escape in double quotes"
        raise ConfigError([*builder.problems, Problem(file, line, column, "", message)]) from None
    return builder.tree, builder.problems


def scalar(text: str, file: str = "") -> Plain:
    """Parse an override's value: a word, a number, quoted text, or a collection such as `[1, 2]` or `{use: crf}`."""
    if not text:
        return None
    place = file or text
    try:
        tree, problems = read_tree(text.encode("utf-8", "surrogateescape"), place)
    except ConfigError as error:
        tree, problems = Tree(place), error.problems
    if not problems and text.lstrip()[0] not in "[{" and isinstance(tree.data, (list, dict)):
        fix = "put it in quotes, or write [a, b] or {key: value}"
        problems = [Problem(place, 0, 0, "", f"{text!r} is not one value; {fix}")]
    if problems:
        raise ConfigError([Problem(place, 0, 0, "", problem.message) for problem in problems])
    return tree.data


class _Events(Reader, Scanner, Parser):
    """PyYAML's parser alone; it counts nested brackets while scanning, before the look-ahead becomes quadratic."""

    def __init__(self, text: str):
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        if self.flow_level >= MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested more than {MAX_DEPTH} deep", problem_mark=self.get_mark())
        super().fetch_flow_collection_start(token_class)


class _Builder:
    """Builds a tree from parser events, and collects the problems."""

    def __init__(self, file: str):
        self.tree = Tree(file)
        self.problems: list[Problem] = []
        self.nodes = 0

    def document(self, text: str) -> None:
        self.next_event: Callable[[], Any] = _Events(text).get_event
        self.next_event()  # the start of the stream
        start = self.next_event()
        first = start if isinstance(start, yaml.StreamEndEvent) else self.next_event()
        if first is start or (isinstance(first, yaml.ScalarEvent) and first.value == "" and first.style is None):
            raise yaml.MarkedYAMLError(problem="the file is empty", problem_mark=start.start_mark)
        self.tree.data = self.node(first, (), 0)
        self.next_event()  # the end of the document
        after = self.next_event()
        if not isinstance(after, yaml.StreamEndEvent):
            self.error(after, (), "a second document starts here; a file has one (delete the '---' or '...' line)")

    def error(self, event: Any, path: Path, message: str) -> None:
        mark = event.start_mark
        self.problems.append(Problem(self.tree.file, mark.line + 1, mark.column + 1, key_text(path), message))

    def node(self, event: Any, path: Path, depth: int) -> Plain:
        self.nodes += 1
        if depth >= MAX_DEPTH and not isinstance(event, (yaml.ScalarEvent, yaml.AliasEvent)):
            raise yaml.MarkedYAMLError(problem=f"nested more than {MAX_DEPTH} deep", problem_mark=event.start_mark)
        if self.nodes > MAX_NODES:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_NODES:,} values", problem_mark=event.start_mark)
        self.tree.values[path] = Spot(self.tree.file, event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, yaml.AliasEvent):
            self.error(event, path, f"aliases are not read; write the value of *{event.anchor}, or quote the text")
            return None
        if event.anchor is not None:
            self.error(event, path, f"anchors are not read; delete &{event.anchor}, or quote the text")
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.error(event, path, f"tags are not read; delete {tag}, or quote the text")
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(path, depth)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Plain] = []
            while not isinstance(item := self.next_event(), yaml.SequenceEndEvent):
                items.append(self.node(item, (*path, len(items)), depth + 1))
            return items
        if re.search(r"[\ud800-\udfff]", event.value):
            self.error(event, path, "a lone surrogate (such as \\ud800); write the whole character")
            return "?"
        if event.style is not None:
            return event.value
        try:
            return resolve(event.value)
        except ValueError as error:
            self.error(event, path, str(error))
            return event.value

    def mapping(self, path: Path, depth: int) -> dict[str, Plain]:
        items: dict[str, Plain] = {}
        while not isinstance(start := self.next_event(), yaml.MappingEndEvent):
            known = len(self.problems)
            key = self.node(start, (*path, "?"), depth + 1)
            usable = isinstance(key, str) and key not in items
            if usable and not (key == "<<" and start.style is None):
                items[key], self.tree.keys[(*path, key)] = None, self.tree.values[(*path, "?")]
                items[key] = self.node(self.next_event(), (*path, key), depth + 1)
                continue
            if usable:
                self.error(start, (*path, key), "merge keys are not read; write the keys out")
            elif isinstance(key, str):
                first = self.tree.keys[(*path, key)].line
                self.error(start, (*path, key), f"duplicate key (first in line {first}); delete one of the two")
            elif len(self.problems) == known:
                self.error(start, path, f"a key must be text, not {format_value(key)}; put it in quotes")
            # The value is read only to find its problems, at an unused path.
            self.node(self.next_event(), (*path, "?"), depth + 1)
        return items


def _decode(data: bytes, file: str) -> str:
    if len(data) > MAX_BYTES:
        message = f"{len(data):,} bytes; a pipeline's YAML has at most {MAX_BYTES:,}"
        raise ConfigError([Problem(file, 1, 1, "", message)])
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError([Problem(file, 1, 1, "", "this file is UTF-16; save it as UTF-8")])
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line, column = _line_and_column(data[: error.start].decode("utf-8"))
        message = f"the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise ConfigError([Problem(file, line, column, "", message)]) from None


def _line_and_column(before: str) -> tuple[int, int]:
    lines = before.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return len(lines), len(lines[-1]) + 1
