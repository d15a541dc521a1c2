"""Toy components without torch, a good and a full YAML of them, and a table of wrong YAMLs with their problems."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

import seqpipe.plugin
from seqpipe.config.loader import load_config
from seqpipe.config.plugins import Plugins
from seqpipe.errors import ConfigError, Problem
from seqpipe.plugin import hookimpl
from seqpipe.types import Size

Positive = Annotated[int, Field(gt=0)]


class Lines:
    """Reads lines.

    Args:
        separator: What stands between columns.
    """

    def __init__(self, *, separator: str = " ", header: bool = False):
        self.separator, self.header = separator, header


class Words:
    """Splits at spaces."""

    def __init__(self, *, min_count: Positive = 1, pattern: str | None = None):
        self.min_count, self.pattern = min_count, pattern


class Lookup:
    """A vector for each id."""

    def __init__(self, vocabulary, *, dim: Positive = 8, vectors: Path | None = None, scale: float = 1.0):
        self.dim = dim

    def forward(self, ids): ...


class Chars:
    """A vector from letters."""

    features: ClassVar = {"chars": seqpipe.plugin.Chars(longest=20)}

    def __init__(self, sizes, *, dim: Positive = 8, widths: tuple[Positive, ...] = (3,)):
        self.dim = dim

    def forward(self, chars): ...


class LongChars(Chars):
    """The same, with longer words."""

    features: ClassVar = {"chars": seqpipe.plugin.Chars(longest=99)}


class Mean:
    """Looks both ways."""

    returns = ("x", "state")

    def __init__(self, dim, *, hidden: Positive = 8, dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0):
        self.dim = hidden

    def forward(self, x, mask): ...


class Flat(Mean):
    """Returns x alone."""

    returns = ("x",)


class FromIds:
    """Needs no embedding."""

    def __init__(self, vocabulary, *, size: Literal["small", "large"] = "small"):
        self.dim = 8

    def forward(self, ids, mask): ...


class Tagger:
    """A tag a word."""

    @staticmethod
    def answer(options: Mapping[str, Any]) -> str:
        return "tags" if options["scheme"] == "none" else "spans"

    @staticmethod
    def answer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
        return {} if options["scheme"] == "none" else {"scheme": options["scheme"]}

    def __init__(self, dim, labels, *, scheme: Literal["BIOES", "IOB2", "none"] = "IOB2"): ...

    def loss(self, x, mask, tags): ...

    def decide(self, x, mask, *, n_best: Size = 1): ...

    def score(self, x, mask, tags): ...


class Writer:
    """Writes text."""

    answer = "text"

    def __init__(self, dim, target_vocabulary, *, cells: Positive): ...

    def loss(self, x, state, target_ids, target_mask): ...

    def decide(self, x, state, *, beams: Size = 4): ...


class Mute:
    """A head that is not finished."""

    answer = "tag"

    def __init__(self, dim): ...

    def loss(self, x): ...


class Lost:
    """An encoder that asks for names that no stage provides."""

    def __init__(self, dim): ...

    def forward(self, x, masks, tags): ...


class Greedy:
    """An encoder that swallows every option."""

    def __init__(self, dim, **options: int): ...

    def forward(self, x): ...


class Toys:
    """The plugin that offers all of these."""

    @hookimpl
    def register_readers(self):
        return {"lines": Lines}

    @hookimpl
    def register_tokenizers(self):
        return {"words": Words}

    @hookimpl
    def register_embeddings(self):
        return {"lookup": Lookup, "chars": Chars, "long-chars": LongChars}

    @hookimpl
    def register_encoders(self):
        missing = "no_such_package.encoders:Gone"
        return {"mean": Mean, "flat": Flat, "from-ids": FromIds, "lost": Lost, "greedy": Greedy, "gone": missing}

    @hookimpl
    def register_heads(self):
        return {"tagger": Tagger, "writer": Writer, "mute": Mute}


class Distribution(NamedTuple):
    name: str
    version: str


class EntryPoint(NamedTuple):
    """The entry point of an installed plugin, in memory."""

    name: str
    value: str
    dist: Distribution
    plugin: object

    def load(self) -> object:
        return self.plugin


TOYS = Plugins([EntryPoint("toys", "toys:plugin", Distribution("toys", "1.0"), Toys())])


GOOD = """\
data:
  reader: lines
  train: train.txt
  dev: dev.txt
tokenizer: {use: words}
embedding: {use: lookup}
encoder: {use: mean}
head: {use: tagger}
"""
FULL = """\
name: full
data:
  reader: {use: toys/lines, separator: '1e-3', header: true}
  train: train.txt
  dev: dev.txt
  test: {a: train.txt, b: dev.txt}
  misaligned: widen
tokenizer: {use: words, pattern: '\\w+ é #x: y', field: body}
embedding:
  - {use: lookup, dim: 3, vectors: dev.txt, scale: .inf, lr: 1e-5}
  - {use: chars, widths: [1, 2]}
encoder: [mean, {use: toys/flat, freeze: true}, mean]
head: [{use: writer, cells: 2, target: summary, weight: 2, target_tokenizer: {use: words, min_count: 7}}]
train: {optimizer: {use: sgd, momentum: 0.9, nesterov: true}, schedule: {use: plateau}, clip: null, average: 0.999}
export: {opset: 20}
plugins: {allow: [toys>=1], versions: {toys: '1.0'}}
"""


def encoded(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def write(folder: Path, text: str | bytes) -> Path:
    """Writes a YAML and the data files that it names."""
    for name in ("train.txt", "dev.txt"):
        (folder / name).write_text("x\n")
    (folder / "pipeline.yaml").write_bytes(encoded(text))
    return folder / "pipeline.yaml"


def problems(path: Path, *overrides: str, files: bool = True) -> list[Problem]:
    """The problems of a YAML of the toys, none if it is good; any other exception goes through."""
    try:
        load_config(path, overrides, TOYS, files, runs=files)
    except ConfigError as error:
        return error.problems
    return []


def keys(node: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The steps to each key and item of a tree."""
    children: Iterable[tuple[Any, Any]] = []
    if isinstance(node, dict):
        children = node.items()
    elif isinstance(node, list):
        children = enumerate(node)
    for key, child in children:
        yield (*before, key)
        yield from keys(child, (*before, key))


def stage(**lines: str) -> str:
    """The good YAML with some lines of its stages in other words (lines 5 to 8), and further lines after them."""
    text = GOOD.splitlines()
    for key, value in lines.items():
        at = next((number for number, line in enumerate(text) if line.startswith(f"{key}:")), len(text))
        text[at : at + 1] = [f"{key}: {value}"]
    return "\n".join(text) + "\n"


def data(*lines: str) -> str:
    """The good YAML with these lines below `data:` (from line 2)."""
    text = GOOD.splitlines()
    return "\n".join([text[0], *(f"  {line}" for line in lines), *text[4:]]) + "\n"


class Bad(NamedTuple):
    """A wrong YAML, `line:column: key` of each of its problems, and words of one of their messages."""

    yaml: str | bytes
    places: str
    words: str


def top(line: str) -> str:
    """The good YAML with one more line, line 9."""
    return GOOD + line + "\n"


def sourced(inputs: str) -> str:
    """The good YAML with inputs in line 5 in place of its source."""
    lines = GOOD.splitlines()
    return "\n".join([*lines[:4], f"inputs: {inputs}", lines[7]]) + "\n"


READER = ["reader: lines", "train: train.txt"]

# Wrong YAMLs as a whole: text, places, words.
WHOLE_FILES = [
    ("", "1:1: ", "the file is empty"),
    ("# only a comment\n", "2:1: ", "the file is empty"),
    ("---\n", "1:1: ", "the file is empty"),
    ("lstm\n", "1:1: ", "a pipeline is a mapping of keys"),
    ("- a\n- b\n", "1:1: ", "not [a, b]"),
    ("~\n", "1:1: ", "not null"),
    ("name: 'x\n", "1:7: ", "this quote is never closed"),
    ('name: "x\n', "1:7: ", "this quote is never closed"),
    ("name: x\n\tdata: y\n", "2:1: ", "indent with spaces"),
    ("data:\n\treader: lines\n", "2:1: ", "indent with spaces"),
    ("embedding: [a, b\n", "1:12: ", "add the ']'"),
    ("embedding: {use: a\n", "1:12: ", "add the '}'"),
    ("embedding: [{use: a]\n", "1:20: ", "missing before this"),
    ("embedding: [a, b]]\n", "1:18: ", "there is no '[' for this ']'"),
    ("embedding: {use: a}}\n", "1:20: ", "there is no '{' for this '}'"),
    ("name: a: b\n", "1:8: ", "put text with ': ' in quotes"),
    ("name: @x\n", "1:7: ", "cannot start with '@'"),
    ("name: `x`\n", "1:7: ", "cannot start with '`'"),
    ("name: %x\n", "1:7: ", "cannot start with '%'"),
    ("name: *\n", "1:7: ", "cannot start with '*'"),
    ("name: &\n", "1:7: ", "cannot start with '&'"),
    ("name: x\ntrain\n", "2:1: ", "write 'key: value'"),
    ("name: x\n  train: y\n", "2:8: ", "indented too far"),
    ("data:\n    train: x\n  dev: y\n", "3:3: ", "check its indentation"),
    ('name: "\\q"\n', "1:9: ", "no such escape"),
    ('name: "\\xZZ"\n', "1:10: ", "not complete"),
    ("name: a\x00b\n", "1:8: ", "U+0000"),
    ("name: x\ntrain: \x07\n", "2:8: ", "U+0007"),
    (b"name: x\n# caf\xe9\n", "2:6: ", "the byte 0xe9 is not UTF-8; save the file as UTF-8"),
    ("name: x\n".encode("utf-16"), "1:1: ", "UTF-16"),
    ("name: x\n...\ntrain: {}\n", "3:1: ", "delete the '...' line"),
    ("[" * 30_000, "1:41: ", "nested more than 40 deep"),
    ("{" * 30_000, "1:41: ", "nested more than 40 deep"),
    ("- " * 30_000, "1:81: ", "nested more than 40 deep"),
    ("a: [", "1:5: ", "with a bracket still open"),
    ("#" * 1_000_001, "1:1: ", "at most 1,000,000"),
    (GOOD + "---\nname: b\n", "9:1: ", "a second document"),
    ("name: x\n", "1:1: data, 1:1: tokenizer, 1:1: head", "write head: {use: NAME} (there is: mute, tagger, writer)"),
    (GOOD.replace("tokenizer: {use: words}\n", ""), "1:1: tokenizer", "there is: words"),
    ("data: x\n" + GOOD.split("\n", 4)[4], "1:7: data", "a mapping of keys, not 'x'"),
    (data(*READER) + "train: {patience: 3}\n", "8:19: train.patience", "write data.dev, or delete patience"),
    (data(*READER) + "train: {schedule: plateau}\n", "8:19: train.schedule.use", "needs the dev score"),
    (GOOD.replace("embedding: {use: lookup}\n", ""), "6:16: encoder", "no x yet: add one, such as `embedding: lookup`"),
    (data("train: train.txt"), "1:1: data.reader", "there is: lines"),
    (data("reader: lines"), "1:1: data.train", "Training data."),
    (data("reader: lines", "train:"), "3:9: data.train", "should be a path or a list of paths, not null"),
    (data("reader: lines", "train: ''"), "3:10: data.train", "should be a path or a list of paths, not ''"),
    (data("reader: lines", "train: [1]"), "3:11: data.train.0", "should be a path or a list of paths"),
    (data("reader: lines", "train: trian.txt"), "3:10: data.train", "did you mean 'train.txt'?"),
    (data("reader: lines", "train: nowhere/x.txt"), "3:10: data.train", "there is no folder"),
    (data("reader: lines", "train: https://example.org/x"), "3:10: data.train", "download the file first"),
    (data("reader: lines", "train: ."), "3:10: data.train", "files of several kinds (.txt, .yaml)"),
    (data("reader: lines", 'train: "a\\0b"'), "3:10: data.train", "U+0000"),
    (data("reader: lines", f"train: {'a' * 5000}"), "3:10: data.train", "no such file"),
    (data(*READER, "dev: no.txt", "test: no.txt"), "4:8: data.dev, 5:9: data.test", "no such file 'no.txt'"),
    (stage(encoder="lstm", head="crf"), "7:10: encoder.use, 8:7: head.use", "no head named 'crf'"),
    (
        stage(encoder="flat", head="{use: writer, cells: 3, target_tokenizer: same}"),
        "8:13: head, 8:13: head",
        "asks for 'state', which nothing provides (there is: ids, mask, x)",
    ),
    (
        stage(tokenizer="{use: wrods}", encoder="{use: mean, hidden: 0}", head="{use: tagger, scheme: X}", trian="{}"),
        "5:18: tokenizer.use, 7:30: encoder.hidden, 8:29: head.scheme, 9:1: trian",
        "did you mean 'words'?",
    ),
]
# A line after the good YAML: text, places, words.
LINE_9 = [
    ("name: 012", "9:7: name", "quote it ('012')"),
    ("name: !!str 12", "9:7: name", "tags are not read; delete !!str"),
    ("name: !!python/object:os.system x", "9:7: name", "tags are not read"),
    ("name: ! x", "9:7: name", "tags are not read"),
    ("name: &a x", "9:7: name", "anchors are not read; delete &a"),
    ("name: *a", "9:7: name", "aliases are not read"),
    ("head: tagger", "9:1: head", "duplicate key (first in line 8)"),
    ("1: x", "9:1: ", "a key must be text, not 1"),
    ("true: x", "9:1: ", "a key must be text, not true"),
    ("~: x", "9:1: ", "a key must be text, not null"),
    ("? [a]\n: x", "9:3: ", "a key must be text, not [a]"),
    ('name: "\\ud800"', "9:7: name", "a lone surrogate"),
    ("trian: {}", "9:1: trian", "did you mean 'train'?"),
    ("input: {}", "9:1: input", "did you mean 'inputs'?"),
    ("inputs: {}", "5:1: tokenizer, 6:1: embedding, 7:1: encoder, 9:9: inputs", "a mapping from the names"),
    ("no: 1", "9:1: no", "no such key"),
    ("name: 3", "9:7: name", "should be text, not 3; put it in quotes ('3')"),
    ("name: ../x", "9:7: name", "is not valid for a run"),
    ("name: a b", "9:7: name", "is not valid for a run"),
    ("name: ''", "9:7: name", "is not valid for a run"),
    ("name: [a]", "9:7: name", "should be text, not [a]"),
    ("train: 3", "9:8: train", "a mapping of keys, not 3"),
    ("export: {precision: int4}", "9:21: export.precision", "should be 'fp32' or 'int8', not 'int4'"),
    ("export: {opset: 17}", "9:17: export.opset", "from 18 to 23, not 17"),
    ("export: {format: onnx}", "9:10: export.format", "there is: precision, opset"),
    ("plugins: {allow: acme}", "9:18: plugins.allow", "should be a list, each a distribution with versions"),
    ("plugins: {allow: ['acme>=']}", "9:19: plugins.allow.0", "distribution with versions, such as 'acme-conv>=1,<2'"),
    ("plugins: {versions: {acme: 1.0}}", "9:28: plugins.versions.acme", "should be"),
    ("plugins: {deny: []}", "9:11: plugins.deny", "there is: allow, versions"),
]
# Values of `inputs`: text, places, words.
INPUTS = [
    ("[a]", "5:9: inputs", "a mapping from the names of sources"),
    ("{a: words}", "5:13: inputs.a", "a mapping of keys (field, tokenizer, embedding, encoder)"),
    ("{a: {fields: x, tokenizer: words, embedding: lookup}}", "5:14: inputs.a.fields", "did you mean 'field'?"),
    ("{a-b: {tokenizer: words, embedding: lookup}}", "5:10: inputs.a-b", "letters, digits and '_'"),
    ("{a: {embedding: lookup}}", "5:10: inputs.a.field", "name the field of the numbers"),
    (
        "{a: {field: x, tokenizer: {use: words, field: y}, embedding: lookup}}",
        "5:55: inputs.a.tokenizer.field",
        "delete one of them",
    ),
    ("{a: {tokenizer: words, embedding: lokup}}", "5:43: inputs.a.embedding.use", "did you mean 'lookup'?"),
    ("{a: {field: x, embedding: lookup}}", "5:35: inputs.a.embedding, 5:35: inputs.a.embedding", "tokenizer; add one"),
    (
        "{a: {tokenizer: words, embedding: lookup}, b: {tokenizer: words}}",
        "6:13: head",
        "it reads the x of every input, and 'b' has none; add an embedding",
    ),
]
# Values of `data.reader`: text, places, words.
READERS = [
    ("{use: lines, seperator: x}", "2:24: data.reader.seperator", "no such option; did you mean 'separator'?"),
    ("{use: lines, header: no}", "2:32: data.reader.header", "true or false, not 'no'; write false"),
    ("{use: lines, header: 1}", "2:32: data.reader.header", "true or false, not 1"),
    ("{use: lines, separator: 1}", "2:35: data.reader.separator", "should be text, not 1"),
    ("{use: lines, field: a}", "2:24: data.reader.field", "only beside the `use` of a tokenizer"),
]
# A line of `data`: text, places, words.
DATA = [
    ("test: {a: train.txt, b: no.txt}", "4:27: data.test.b", "no such file"),
    (
        "test: true",
        "4:9: data.test",
        "a path or a list of paths, a share of the records, of at most 0.5, a mapping from names to paths or null",
    ),
    ("add: [no.txt]", "4:9: data.add.0", "no such file 'no.txt'"),
    ("add: train.txt", "4:8: data.add", "a list"),
    ("group: ''", "4:10: data.group", "text that is not empty"),
    ("test: {a: 3}", "4:13: data.test.a", "3 does not fit here"),
    ("test: {a b: train.txt}", "4:15: data.test.a b", "does not fit here"),
    ("misaligned: ignore", "4:15: data.misaligned", "'error', 'widen' or 'skip', not 'ignore'"),
    (
        "v: 1",
        "4:3: data.v",
        "reader, train, dev, test, add, group, split, split_seed, fold, unlabelled, candidates, bad_rows",
    ),
    ("overlaps: last", "4:13: data.overlaps", "'error', 'longest' or 'first', not 'last'"),
    ("tests: dev.txt", "4:3: data.tests", "did you mean 'test'?"),
]
# Values of `tokenizer`: text, places, words.
TOKENIZERS = [
    ("word", "5:12: tokenizer.use", "no tokenizer named 'word'; did you mean 'words'?"),
    ("{use: mean}", "5:18: tokenizer.use", "is a component of another kind: encoder"),
    ("3", "5:12: tokenizer", "the name of a tokenizer or {use: NAME, …}, not 3"),
    ("[words]", "5:12: tokenizer", "not [words]"),
    ("{min_count: 2}", "5:1: tokenizer.use", "name the tokenizer (there is: words)"),
    ("{}", "5:1: tokenizer.use", "name the tokenizer"),
    ("{use: words, lr: 0.1}", "5:25: tokenizer.lr", "only beside the `use` of an embedding or encoder or head"),
    ("{use: words, field: 3}", "5:32: tokenizer.field", "should be text that is not empty or a list of 2"),
    ("{use: words, feild: x}", "5:25: tokenizer.feild", "did you mean 'field'?"),
]
# Values of `embedding`: text, places, words.
EMBEDDINGS = [
    ("{use: chars, widths: 3}", "6:33: embedding.widths", "a list, each a whole number above 0, not 3"),
    ("{use: chars, widths: [3, x]}", "6:37: embedding.widths.1", "'x' does not fit here"),
    ("[{use: lookup, dim: 0}, {use: chars, dim: x}]", "6:32: embedding.0.dim, 6:54: embedding.1.dim", "above 0"),
    ("{use: lookup, vectors: no.bin}", "6:35: embedding.vectors", "no such file 'no.bin'"),
    ("{use: lookup, vectors: 3}", "6:35: embedding.vectors", "a path or null, not 3"),
    ("[]", "7:16: encoder", "asks for 'dim', and there is no x yet"),
    (
        "[chars, {use: long-chars}]",
        "6:26: embedding.1",
        "feature 'chars' is Chars(longest=99, alphabet='', normalize=None) here and "
        "Chars(longest=20, alphabet='', normalize=None) in embedding.0",
    ),
]
# Values of `encoder`: text, places, words.
ENCODERS = [
    ("{type: mean}", "7:1: encoder.use", "is 'type' meant to be 'use'?"),
    ("{use: 3}", "7:16: encoder.use", "the name of an encoder, not 3"),
    ("{use: [mean]}", "7:16: encoder.use", "not [mean]"),
    ("{use: }", "7:1: encoder.use", "name the encoder"),
    ("[mean, maen]", "7:17: encoder.1.use", "did you mean 'mean'?"),
    ("[mean, 3]", "7:17: encoder.1", "not 3"),
    ("{use: others/mean}", "7:16: encoder.use", "no encoder named 'others/mean'"),
    ("gone", "7:10: encoder.use", "encoder 'gone' of toys 1.0 cannot be loaded"),
    ("greedy", "7:10: encoder.use", "'greedy' of toys: bad_yamls.Greedy: '**options' would accept a misspelt option"),
    ("{use: mean, hiden: 3}", "7:22: encoder.hiden", "'mean' has no such option; did you mean 'hidden'?"),
    ("{use: mean, heads: 3}", "7:22: encoder.heads", "there is: hidden, dropout, use, init, freeze, lr"),
    ("{use: mean, hidden: '3'}", "7:30: encoder.hidden", "a whole number above 0, not '3'; write 3 without quotes"),
    ("{use: mean, hidden: 0}", "7:30: encoder.hidden", "a whole number above 0, not 0"),
    ("{use: mean, hidden: -1}", "7:30: encoder.hidden", "not -1"),
    ("{use: mean, hidden: 3.0}", "7:30: encoder.hidden", "not 3.0; write 3"),
    ("{use: mean, hidden: true}", "7:30: encoder.hidden", "not true"),
    ("{use: mean, hidden: 1_000}", "7:30: encoder.hidden", "not '1_000'; write 1000"),
    ("{use: mean, hidden: null}", "7:30: encoder.hidden", "not null"),
    ("{use: mean, hidden: [3]}", "7:30: encoder.hidden", "not [3]"),
    ("{use: mean, dropout: 1}", "7:31: encoder.dropout", "a number from 0 and below 1, not 1"),
    ("{use: mean, dropout: .nan}", "7:31: encoder.dropout", "not .nan"),
    ("{use: mean, hidden: x, dropout: 2}", "7:30: encoder.hidden, 7:42: encoder.dropout", "not 'x'"),
    ("{use: from-ids, size: tiny}", "7:32: encoder.size", "should be 'small' or 'large', not 'tiny'"),
    ("{use: mean, weight: 2}", "7:22: encoder.weight", "only beside the `use` of a head"),
    ("{use: mean, target: x}", "7:22: encoder.target", "has no meaning here"),
    ("{use: mean, lr: 0}", "7:26: encoder.lr", "a number above 0 or null, not 0"),
    ("{use: mean, lr: .inf}", "7:26: encoder.lr", "not .inf"),
    ("{use: mean, freeze: yes}", "7:30: encoder.freeze", "write true"),
    ("{use: mean, name: a}", "7:22: encoder.name", "has no meaning here, only beside the `use` of a head"),
    ("[{use: mean}, {use: mean, init: runs/a}]", "7:42: encoder.1.init", "that `seqpipe train` or `seqpipe run` wrote"),
    ("{use: maen, weight: 2, lr: x}", "7:16: encoder.use, 7:22: encoder.weight, 7:37: encoder.lr", "you mean 'mean'?"),
    ("lost", "7:10: encoder, 7:10: encoder", "asks for 'masks', which nothing provides; did you mean 'mask'?"),
]
# Values of `head`: text, places, words.
HEADS = [
    ("", "1:1: head", "missing"),
    ("[]", "1:1: head", "missing"),
    ("[tagger, {use: tagger}]", "8:16: head.1", "two heads are called 'tagger'"),
    ("{use: writer, target_tokenizer: same}", "8:1: head.cells", "'writer' needs it: it has no default"),
    ("{use: tagger, scheme: bioes}", "8:29: head.scheme", "'BIOES', 'IOB2' or 'none', not 'bioes'"),
    ("{use: tagger, weight: -1}", "8:29: head.weight", "a number above 0, not -1"),
    ("{use: tagger, target: 3}", "8:29: head.target", "text that is not empty or null, not 3"),
    ("{use: writer, cells: 3, target_tokenizer: wrods}", "8:49: head.target_tokenizer.use", "did you mean 'words'?"),
    (
        "{use: writer, cells: 3, target_tokenizer: {use: words, field: x}}",
        "8:62: head.target_tokenizer.field",
        "has no meaning here",
    ),
    (
        "{use: writer, cells: 3, target_tokenizer: {use: words, min_count: 0}}",
        "8:73: head.target_tokenizer.min_count",
        "above 0",
    ),
    ("{use: writer, cells: 3}", "8:13: head", "add `target_tokenizer: {use: NAME}` to the head"),
    ("{use: tagger, target_tokenizer: words}", "8:13: head", "delete `target_tokenizer`"),
    ("mute", "8:7: head, 8:7: head", "`answer` is 'tag'; did you mean 'tags'?; an answer kind is one of tags, spans,"),
]
# Values of `train`: text, places, words.
TRAIN = [
    ("{<<: {epochs: 3}}", "9:9: train.<<", "write the keys out"),
    ("{epochs: 1, epochs: 2}", "9:20: train.epochs", "duplicate key (first in line 9)"),
    ("{seed: 99999999999999999999}", "9:15: train.seed", "too large"),
    ("{clip: 1e999}", "9:15: train.clip", "too large"),
    ("{epochs: 012, epochs: 0, seeds: 1}", "9:17: train.epochs, 9:22: train.epochs, 9:33: train.seeds", "duplicate"),
    ("{epoch: 3}", "9:9: train.epoch", "did you mean 'epochs'?"),
    ("{dropout: 0.5}", "9:9: train.dropout", "'train' has no such key (there is: epochs,"),
    ("{epochs: 0}", "9:17: train.epochs", "a whole number above 0, not 0"),
    ("{epochs: null}", "9:17: train.epochs", "not null"),
    ("{epochs: 1e1}", "9:17: train.epochs", "not 10.0; write 10"),
    ("{batch_size: 0}", "9:21: train.batch_size", "a whole number above 0 or null"),
    ("{clip: -1}", "9:15: train.clip", "a number above 0 or null"),
    ("{average: 1}", "9:18: train.average", "a number from 0 and below 1 or null, not 1"),
    ("{seed: -1}", "9:15: train.seed", "a whole number from 0, not -1"),
    ("{seed: x, epochs: y}", "9:15: train.seed, 9:26: train.epochs", "not 'x'"),
    ("{optimizer: adamm}", "9:20: train.optimizer.use", "did you mean 'adam'?"),
    ("{optimizer: 3}", "9:20: train.optimizer", "a mapping of keys, not 3"),
    ("{optimizer: {use: 3}}", "9:26: train.optimizer.use", "'adamw', 'adam' or 'sgd', not 3"),
    ("{optimizer: {use: sgd, betas: [0.9, 0.9]}}", "9:31: train.optimizer.betas", "optimizer 'sgd' has no such key"),
    ("{optimizer: {lr: 0}}", "9:25: train.optimizer.lr", "a number above 0, not 0"),
    ("{optimizer: {lr: 2e-3x}}", "9:25: train.optimizer.lr", "not '2e-3x'"),
    (
        "{optimizer: {betas: [0.9]}}",
        "9:28: train.optimizer.betas",
        "a list of 2 (a number from 0 and below 1, a number from 0 and below 1), not [0.9]",
    ),
    ("{optimizer: {betas: [0.9, 1]}}", "9:34: train.optimizer.betas.1", "1 does not fit here"),
    ("{optimizer: {use: sgd, nesterov: true}}", "9:20: train.optimizer", "nesterov needs a momentum above 0"),
    ("{schedule: {use: step}}", "9:25: train.schedule.use", "'constant', 'linear', 'cosine' or 'plateau', not 'step'"),
    ("{schedule: {use: linear, factor: 0.5}}", "9:33: train.schedule.factor", "schedule 'linear' has no such key"),
    ("{schedule: {warmup_ratio: 1}}", "9:34: train.schedule.warmup_ratio", "below 1, not 1"),
    ("{schedule: {use: cosine, final_ratio: 2}}", "9:46: train.schedule.final_ratio", "a number from 0 to 1, not 2"),
]
BAD = [
    *(Bad(text, places, words) for text, places, words in WHOLE_FILES),
    *(Bad(top(line), places, words) for line, places, words in LINE_9),
    *(Bad(sourced(inputs), places, words) for inputs, places, words in INPUTS),
    *(Bad(data(f"reader: {reader}", "train: train.txt"), places, words) for reader, places, words in READERS),
    *(Bad(data(*READER, line), places, words) for line, places, words in DATA),
    *(Bad(stage(tokenizer=tokenizer), places, words) for tokenizer, places, words in TOKENIZERS),
    *(Bad(stage(embedding=embedding), places, words) for embedding, places, words in EMBEDDINGS),
    *(Bad(stage(encoder=encoder), places, words) for encoder, places, words in ENCODERS),
    *(Bad(stage(head=head), places, words) for head, places, words in HEADS),
    *(Bad(top(f"train: {settings}"), places, words) for settings, places, words in TRAIN),
]
