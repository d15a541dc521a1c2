"""Read and write bundles: a folder with a graph, its tokenizers and bundle.json.

Every byte is hashed before anything parses it. That detects damage, not forgery; against forged bundles there are
bounds on tokenizers, features and labels here, and those of `seqpipe.runtime.manifest` and
`seqpipe.runtime.graph_check`.
"""

from __future__ import annotations

import base64
import json
import math
import re
import stat
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers.base import AnswerKind
from seqpipe.answers.registry import answer_from, tokenizer_file
from seqpipe.errors import BundleError, UsageError
from seqpipe.features.encoding import is_library_error
from seqpipe.features.kinds.registry import feature_from
from seqpipe.features.sources import InputSource, source_from, tokenizer_file_of
from seqpipe.features.vocabulary import SPECIALS
from seqpipe.files import sha256, writing_folder
from seqpipe.runtime.decode_options import option_arrays
from seqpipe.runtime.manifest import MANIFEST, FileEntry, Manifest, Reader, find_change, parse_manifest, seal

if TYPE_CHECKING:
    from seqpipe.config.plugins import Plugins

CARD = "README.md"  # file of the model card
MOST_MANIFEST, MOST_FILE = 64 << 20, 1_900_000_000  # bytes


@dataclass(frozen=True)
class BundleContent:
    """A bundle with verified hashes: the manifest, the bytes of the files that it lists, and its own sha256."""

    path: Path
    manifest: Manifest
    files: Mapping[str, bytes]
    sha256: str = ""


def refuse_other(path: Path) -> None:
    """Raise UsageError if something other than a bundle would be replaced."""
    if path.exists() and not (path / MANIFEST).is_file() and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{path}: exists and is not a bundle; name another folder, or move it away")


def write_bundle(path: Path, files: Mapping[str, bytes], manifest: Manifest) -> None:
    """Write a bundle atomically, with these files in its manifest; replace an existing one."""
    refuse_other(path)
    # The card is left out of the manifest: nothing reads it, and its author completes it, maybe on the hub.
    listed = {name: data for name, data in files.items() if name != CARD}
    entries = {name: FileEntry(sha256=sha256(data), bytes=len(data)) for name, data in listed.items()}
    sealed = seal(manifest.model_copy(update={"files": entries}).content())
    with writing_folder(path) as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        (folder / MANIFEST).write_bytes(sealed)


def read_manifest(path: Path, pin: str | None = None) -> tuple[Manifest, str]:
    """Return the checked manifest of a bundle and its sha256; arguments and errors are those of `read`."""
    if pin is not None and not re.fullmatch("[0-9a-f]{64}", pin.lower()):
        fix = f"give those that `sha256sum {path / MANIFEST}` prints"
        raise UsageError(f"sha256: {pin!r} is not 64 hexadecimal digits; {fix}")
    if not path.is_dir():
        hint = "not a folder" if path.exists() else "no such folder"
        raise BundleError(f"{path}: {hint}; name a folder that `seqpipe export` or `seqpipe run` wrote")
    if not (path / MANIFEST).exists():
        inner = f"; did you mean {path / 'bundle'}?" if (path / "bundle" / MANIFEST).exists() else ""
        raise BundleError(f"{path}: has no {MANIFEST}{inner}")
    sealed = _bytes(path / MANIFEST, MOST_MANIFEST)
    digest = sha256(sealed)
    if pin is not None and digest != pin.lower():
        message = f"its sha256 is {digest}, not {pin.lower()}"
        raise BundleError(f"{path / MANIFEST}: {message}: this is not the bundle that you expect")
    return parse_manifest(sealed, str(path / MANIFEST)), digest


def read(path: Path, pin: str | None = None) -> BundleContent:
    """Read and check a bundle; BundleError if it is not valid.

    Args:
        path: Its folder.
        pin: The required sha256 of bundle.json; None: any.

    Raises:
        UsageError: if the pin is not a sha256.
    """
    manifest, digest = read_manifest(path, pin)
    files = {}
    for name, entry in manifest.files.items():
        data = _bytes(path / name, MOST_FILE)
        if not entry.is_of(data):
            problem = f"damaged: its sha256 is not the one in {MANIFEST}; copy the bundle again"
            raise BundleError(f"{path / name}: {find_change(data, entry.is_of) or problem}")
        files[name] = data
    return BundleContent(path, manifest, files, digest)


def read_again(path: Path, digest: str) -> BundleContent:
    """Reopen a bundle, possibly in another process; the error explains why its folder must still exist."""
    try:
        return read(path, digest)
    except BundleError as error:
        fix = "keep its folder there, unchanged, or call `seqpipe.load` in each process"
        message = "a model that is pickled, copied, or forked while it answers opens its bundle again"
        raise BundleError(f"{error}; {message}: {fix}") from error


def _bytes(path: Path, most: int) -> bytes:
    """Return a regular file's content; links, pipes and files over the limit are refused unread."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise BundleError(f"{path}: not a regular file; a bundle has no links")
        if status.st_size > most:
            raise BundleError(f"{path}: {status.st_size:,} bytes are over the limit of {most:,}")
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}; copy the bundle again") from error


# Bounds on the tokenizers and labels of a bundle. Its hashes detect damage, not malice.

MOST_GROWTH = 200  # factor by which a tokenizer may lengthen a text
MOST_TOKEN = 4096  # bytes; a token twice as long is refused
_FORMS = {"NFC": 4, "NFD": 4, "NFKC": 18, "NFKD": 18}  # maximum code points of a replaced one
# The same for the other kinds of steps; a pre-tokenizer that marks words adds one code point to each.
_GROWTH = {
    "BertNormalizer": 3, "ByteLevel": 5, "Lowercase": 2, "Nmt": 1, "Strip": 1, "StripAccents": 1,
    "BertPreTokenizer": 1, "CharDelimiterSplit": 1, "Digits": 1, "FixedLength": 1, "Metaspace": 2, "Punctuation": 1,
    "Split": 1, "UnicodeScripts": 1, "Whitespace": 1, "WhitespaceSplit": 1,
    "BPEDecoder": 3, "ByteFallback": 1, "CTC": 3, "Fuse": 1, "WordPiece": 2,
}  # fmt: skip
_MODELS = ("BPE", "Unigram", "WordLevel", "WordPiece")


def check_labels(kind: AnswerKind, shapes: Mapping[str, Sequence[Any]], what: str) -> None:
    """Raise BundleError if the number of labels and of the graph's scores differ."""
    for head, part in kind.parts.items():
        if not part.scored_labels:
            continue
        prefix = f"{head}." if head else ""
        scored = (shapes[prefix + part.scored_labels] or [None])[-1]
        if isinstance(scored, int) and scored != len(part.labels):
            message = f"{prefix}labels: there are {len(part.labels)}, but model.onnx scores {scored}"
            raise BundleError(f"{what}: {message}; model.onnx and bundle.json do not belong together: export it again")


def check_stored_tokenizer(tokenizer: Tokenizer, what: str) -> None:
    """Raise BundleError for a tokenizer that lacks special tokens, or can lengthen a text without bound."""
    missing = [token for token in SPECIALS if tokenizer.token_to_id(token) is None]
    if missing:
        raise BundleError(f"{what}: has no token {', '.join(missing)}; export it again")
    if tokenizer.padding is not None or tokenizer.truncation is not None:
        raise BundleError(f"{what}: pads or truncates texts, which is not allowed; export it again")
    model = tokenizer.model
    if (kind := type(model).__name__) not in _MODELS:
        raise BundleError(f"{what}: the model {kind} is not one of {', '.join(_MODELS)}; export it again")
    texts = [getattr(model, name, None) or "" for name in ("unk_token", "continuing_subword_prefix")]
    growth = {"writing an unknown word": float(max(map(len, texts)))}
    parts = {"encoding": (tokenizer.normalizer, tokenizer.pre_tokenizer), "decoding": (tokenizer.decoder,)}
    for action, steps in parts.items():
        try:
            growth[action] = math.prod(_growth(json.loads(step.__getstate__())) for step in steps if step is not None)
        except (LookupError, ValueError) as error:
            raise BundleError(f"{what}: a step of its {action} is unknown to this version: {error}") from error
    for action, times in growth.items():
        if times > MOST_GROWTH:
            message = f"makes a text up to {times:.2g} times longer in {action}; at most {MOST_GROWTH} times is allowed"
            raise BundleError(f"{what}: {message}")


def _growth(part: Mapping[str, Any]) -> float:
    """Return the factor by which a normalizer, pre-tokenizer or decoder can lengthen a text; LookupError if unknown."""
    growth, form = 1.0, 1  # form: of the Unicode forms so far; a second form lengthens the text no further
    for step in _steps(part):
        kind = step["type"]
        if kind in _FORMS:
            growth, form = growth * max(form, _FORMS[kind]) / form, max(form, _FORMS[kind])
        elif kind == "Replace":
            text = step["pattern"].get("String", "")  # a regular expression may match nothing
            inserted = len(step["content"])
            growth *= max(1.0, inserted / len(text) if text else 1.0 + inserted)
        elif kind == "Prepend":
            growth *= 1.0 + len(step["prepend"])
        elif kind == "Precompiled":
            growth *= _charsmap_growth(base64.b64decode(step["precompiled_charsmap"]), form == _FORMS["NFKC"])
        else:
            growth *= _GROWTH[kind]
        form = form if kind in (*_FORMS, "Lowercase", "Strip", "StripAccents") else 1
    return growth


def _charsmap_growth(charsmap: bytes, is_normal: bool) -> float:
    """Return the factor by which a charsmap of SentencePiece can lengthen a text, which may be in NFKC or NFKD.

    It contains the size of a trie, the trie as a double array of 32-bit units (darts-clone), and the replacements, each
    of which ends with NUL. The library looks up strings of at most five bytes.
    """
    size = int.from_bytes(charsmap[:4], "little")
    units, texts = np.frombuffer(charsmap[4 : 4 + size], "<u4").astype(np.int64), charsmap[4 + size :] + b"\0"
    if not is_normal:
        return max(1.0, *(len(text) for text in texts.decode(errors="replace").split("\0")))
    # The form has already lengthened most of what a charsmap lengthens: only text that the form leaves unchanged
    # counts.
    leads, labels = (units >> 10) << ((units & (1 << 9)) >> 6), np.arange(1, 256)  # a unit leads to its children
    nodes, keys, growth = leads[:1], [b""], 1.0
    for _ in range(5):
        children = nodes[:, None] ^ labels
        inside = children < len(units)
        is_child = inside & (units[children * inside] & ((1 << 31) | 255) == labels)
        rows, columns = is_child.nonzero()
        if len(rows) > min(len(units), 1 << 16):
            raise ValueError("a charsmap with an invalid trie")
        keys = [keys[row] + bytes([label]) for row, label in zip(rows, labels[columns].tolist(), strict=True)]
        at = children[is_child]
        nodes = at ^ leads[at]
        for i in (units[at] >> 8 & 1).nonzero()[0]:
            key = keys[i].decode(errors="replace")
            if key in (unicodedata.normalize("NFKC", key), unicodedata.normalize("NFKD", key)):
                begin = int(units[nodes[i]]) & 0x7FFFFFFF
                replaced = texts[begin : texts.index(b"\0", begin)]
                growth = max(growth, len(replaced.decode(errors="replace")) / len(key))
    return growth


def _steps(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if part["type"] != "Sequence":
        yield part
    for key in ("normalizers", "pretokenizers", "decoders"):
        for inner in part.get(key, ()):
            yield from _steps(inner)


# The inputs and the answers of a pipeline, built from their description in bundle.json.


def build(content: BundleContent) -> tuple[InputSource, AnswerKind]:
    """Build the input source and the answer kind of a bundle; BundleError if that fails."""
    manifest = content.manifest
    names = manifest.field if isinstance(manifest.field, Mapping) else ("",)
    files = {name: tokenizer_file_of(name) for name in names}
    tokenizers = {name: _tokenizer(content, file) for name, file in files.items() if file in content.files}
    try:
        stated: Mapping[str, Any] = manifest.answer
        heads = stated.get("parts", {""})
        writers = {head: tokenizer_file(head) for head in heads if tokenizer_file(head) in content.files}
        targets = {head: _tokenizer(content, file) for head, file in writers.items()}
        by_file = {tokenizer_file(head): tokenizer for head, tokenizer in targets.items()}
        features = {name: feature_from(entry, by_file) for name, entry in manifest.inputs.items() if "kind" in entry}
        kind = answer_from(stated, targets)
        source = source_from(manifest.field, features, tokenizers, kind.every_token, kind.reads_blanks)
        for feature in features.values():
            if message := feature.out_of_bounds():
                raise ValueError(message)
        option_arrays(manifest.options, {})
        if kind.is_generated and not manifest.cache:
            raise ValueError(f"cache, which the answer kind {kind.kind} needs")
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError, UsageError) as error:
        raise BundleError(f"{content.path}: {MANIFEST} lacks or misstates {error}; export it again") from error
    return source, kind


def _tokenizer(content: BundleContent, name: str) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_buffer(content.files[name])
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise BundleError(f"{content.path / name}: not a tokenizer this version reads: {error}") from error
    # A graph may repeat its longest token. In so many bytes of JSON a string begins or ends, except in a charsmap,
    # which has its own bound.
    stated = re.sub(rb'"precompiled_charsmap":\s*"[^"]*"', b"", content.files[name]).replace(b'\\"', b"..")
    if any(stated.find(b'"', at, at + MOST_TOKEN) < 0 for at in range(0, len(stated) - MOST_TOKEN, MOST_TOKEN)):
        raise BundleError(f"{content.path / name}: has a token of more than {MOST_TOKEN:,} bytes; export it again")
    check_stored_tokenizer(tokenizer, str(content.path / name))
    return tokenizer


# The reader that a bundle names, with its options checked as in a YAML.


def reader_from(stated: Reader, plugins: Plugins | None = None) -> Any:
    """Return the reader named `use` with these `options`, of the plugins, by default all that are installed.

    Raises:
        PluginError: if it is not installed.
        BundleError: lists every unknown option, and every option of another type.
    """
    # These imports take a tenth of the time to answer a line, for which they are not needed.
    from seqpipe.config.plugins import Plugins
    from seqpipe.config.signature import construct, options_model, validate_model, values

    cls = (plugins or Plugins()).find("reader", stated.use).load()
    options, mistakes = validate_model(options_model(cls), stated.options)
    if options is None:
        messages = "; ".join(f"{'.'.join(map(str, mistake.where))}: {mistake.message}" for mistake in mistakes)
        raise BundleError(f"bundle.json: reader.options: {messages}; export the bundle again")
    try:
        return construct(cls, **values(options))
    except UsageError as error:
        raise BundleError(f"bundle.json: reader.options: {error}") from error
