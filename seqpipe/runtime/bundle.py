"""Read and write bundles: a folder with a graph, its tokenizers and bundle.json.

Every byte is hashed before anything parses it: bundle.json seals itself (its last entry is the sha256 of what stands
before it) and holds the hashes of all other files. That shows damage, not forgery; forged bundles meet the limits here
and in `seqpipe.runtime.bundle`. `docs/bundle-format.md` specifies the format.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers.base import AnswerKind
from seqpipe.answers.registry import answer_from, tokenizer_file
from seqpipe.config.checks import Attended, attended_from
from seqpipe.config.plugins import Plugins
from seqpipe.config.signature import construct, options_model, validate, values
from seqpipe.errors import BundleError, UsageError
from seqpipe.features.document import Arrays
from seqpipe.features.encoding import is_library_error
from seqpipe.features.kinds.base import FeatureKind
from seqpipe.features.kinds.registry import feature_from
from seqpipe.features.sources import InputSource, source_from, tokenizer_file_of
from seqpipe.features.splitting import CUTS
from seqpipe.features.vocabulary import SPECIALS
from seqpipe.files import json_bytes, sha256, writing_folder
from seqpipe.runtime.decode_options import MOST_SIZE, TRAINED, option_arrays

FORMAT, VERSION = "seqpipe-bundle", 2
MANIFEST = "bundle.json"
MOST_MANIFEST, MOST_FILE = 64 << 20, 1_900_000_000  # bytes
_SEAL = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n}\n\Z')
_LONGEST_REASON = 1_000  # characters
_RESERVED = {"graphs": "further graphs beside model.onnx", "weights": "weights that several graphs share"}
_REQUIRED: dict[str, type | tuple[type, ...]] = {
    "name": str, "files": dict, "inputs": dict, "outputs": list, "options": dict, "answer": dict, "limits": dict,
    "field": (str, list, dict), "reader": dict, "golden": list, "metrics": dict, "parity": dict, "made_with": dict,
}  # fmt: skip


@dataclass(frozen=True)
class BundleContent:
    """A bundle whose hashes are right: what bundle.json says, the bytes of the files it names, its own sha256."""

    path: Path
    manifest: Mapping[str, Any]
    files: Mapping[str, bytes]
    sha256: str = ""


def seal(manifest: Mapping[str, Any]) -> bytes:
    """The manifest as bytes of bundle.json, its own sha256 as the last entry."""
    body = json_bytes(manifest, indent=1).removesuffix(b"\n}")
    return body + f',\n "sha256": "{sha256(body)}"\n}}\n'.encode()


def unseal(data: bytes, what: str) -> dict[str, Any]:
    """The manifest in these bytes; BundleError before anything is parsed if they were changed."""
    match = _SEAL.search(data[-90:])
    if match is None:
        raise BundleError(
            f"{what}: cut short or not a bundle.json: its last entry must be its own sha256; export it again"
        )
    body = data[: len(data) - len(match.group())]
    if sha256(body) != match.group(1).decode():
        raise BundleError(
            f"{what}: damaged: its sha256 is not the one it states; copy the bundle again, or export it again"
        )
    try:
        manifest = json.loads(body + b"}", object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{what}: not valid JSON: {str(error) or 'nested too deeply'}") from error
    return dict(manifest)


def refuse_other(path: Path) -> None:
    """UsageError where something else than a bundle would be replaced."""
    if path.exists() and not (path / MANIFEST).is_file() and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{path}: is there and is not a bundle; name another folder, or move it out of the way")


def write(path: Path, files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> None:
    """Writes a bundle whole or not at all; one that was there is replaced."""
    refuse_other(path)
    entries = {name: {"sha256": sha256(data), "bytes": len(data)} for name, data in files.items()}
    sealed = seal({"format": FORMAT, "version": VERSION, **manifest, "files": entries})
    with writing_folder(path) as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        (folder / MANIFEST).write_bytes(sealed)


def read_manifest(path: Path, pin: str | None = None) -> tuple[dict[str, Any], str]:
    """What bundle.json says, checked, and its sha256; arguments and errors as `read` has them."""
    if pin is not None and not re.fullmatch("[0-9a-f]{64}", pin.lower()):
        raise UsageError(
            f"sha256: {pin!r} is not 64 hexadecimal digits; give those that `sha256sum {path / MANIFEST}` prints"
        )
    if not path.is_dir():
        hint = "not a folder" if path.exists() else "no such folder"
        raise BundleError(f"{path}: {hint}; a bundle is the folder that `seqpipe export` or `seqpipe run` writes")
    if not (path / MANIFEST).exists():
        inner = f"; did you mean {path / 'bundle'}?" if (path / "bundle" / MANIFEST).exists() else ""
        raise BundleError(f"{path}: holds no {MANIFEST}{inner}")
    sealed = _bytes(path / MANIFEST, MOST_MANIFEST)
    digest = sha256(sealed)
    if pin is not None and digest != pin.lower():
        message = f"its sha256 is {digest}, not {pin.lower()}"
        raise BundleError(f"{path / MANIFEST}: {message}: this is another bundle than the one you were told of")
    manifest = unseal(sealed, str(path / MANIFEST))
    _check(manifest, str(path / MANIFEST))
    return manifest, digest


def read(path: Path, pin: str | None = None) -> BundleContent:
    """Reads and checks a bundle; BundleError says what is wrong with it.

    Args:
        path: Its folder.
        pin: The sha256 that the file bundle.json has to have; None: any.

    Raises:
        UsageError: if the pin is no sha256.
    """
    manifest, digest = read_manifest(path, pin)
    files = {}
    for name, entry in manifest["files"].items():
        data = _bytes(path / name, MOST_FILE)
        if len(data) != entry["bytes"] or sha256(data) != entry["sha256"]:
            raise BundleError(f"{path / name}: damaged: its sha256 is not the one in {MANIFEST}; copy the bundle again")
        files[name] = data
    return BundleContent(path, manifest, files, digest)


def _check(manifest: dict[str, Any], what: str) -> None:
    if manifest.get("format") != FORMAT:
        raise BundleError(f"{what}: its format is {manifest.get('format')!r}, not {FORMAT!r}")
    version = manifest.get("version")
    if type(version) is not int or version != VERSION:
        cure = "update seqpipe, or make the bundle again with this one: `seqpipe run PIPELINE.yaml --fresh`"
        if version == 1:
            cure = "make the bundle again: `seqpipe run PIPELINE.yaml --fresh`"
        raise BundleError(f"{what}: bundle format version {version!r}; this seqpipe reads version {VERSION}: {cure}")
    for key, meaning in _RESERVED.items():
        if key in manifest:
            raise BundleError(f"{what}: {key}: {meaning}, which this seqpipe does not read; update seqpipe")
    for key, types in _REQUIRED.items():
        if not isinstance(manifest.get(key), types):
            names = " or ".join(kind.__name__ for kind in (types if isinstance(types, tuple) else (types,)))
            raise BundleError(f"{what}: {key}: missing, or not a {names}")
    if not isinstance(manifest.get("cache", []), list):
        raise BundleError(f"{what}: cache: must be a list")
    streaming = manifest.get("streaming", {"cut": None})
    if not isinstance(streaming, dict) or streaming.get("cut", "") not in (None, *CUTS):
        raise BundleError(f"{what}: streaming: must be an object with `cut`, which is {', '.join(CUTS)} or null")
    _check_packages(manifest, what)
    reason = manifest.get("no_golden", "")
    if not isinstance(reason, str) or len(reason) > _LONGEST_REASON:
        raise BundleError(f"{what}: no_golden: must be a text of at most {_LONGEST_REASON} characters")
    for number, example in enumerate(manifest["golden"], 1):
        if not isinstance(example, dict) or not {"record", "answer"} <= example.keys():
            raise BundleError(f"{what}: golden: example {number} is no object with a record and an answer")
        if not isinstance(example["record"], str | dict) or not isinstance(example.get("options", {}), dict):
            raise BundleError(f"{what}: golden: the record or the options of example {number} are no object")
    for name, entry in manifest["files"].items():
        plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name) and name != MANIFEST
        if not plain or not isinstance(entry, dict) or set(entry) != {"sha256", "bytes"}:
            raise BundleError(f"{what}: files: {name[:100]!r} is not the plain name of a file in the bundle")
    texts = [name.rpartition(".")[0] for name in manifest["inputs"] if name == "ids" or name.endswith(".ids")]
    for name in ("model.onnx", *(f"tokenizer.{text}.json" if text else "tokenizer.json" for text in texts)):
        if name not in manifest["files"]:
            raise BundleError(f"{what}: files: {name} is missing")


def _check_packages(manifest: dict[str, Any], what: str) -> None:
    """BundleError where a reader or the owner of further metrics is not named as an installed component is."""
    owners = manifest.get("own_metrics", {})
    packages: list[tuple[str, Any, tuple[str, ...]]] = [("reader", manifest["reader"], ("use",))]
    if not isinstance(owners, dict):
        raise BundleError(f"{what}: own_metrics: must be an object")
    packages += [(f"own_metrics.{head}", owner, ("use", "distribution", "version")) for head, owner in owners.items()]
    for key, package, texts in packages:
        is_valid = isinstance(package, dict) and all(isinstance(package.get(text), str) for text in texts)
        if not is_valid or not isinstance(package.get("options"), dict):
            message = f"must be an object with {', '.join(f'`{text}`' for text in texts)}, and the object `options`"
            raise BundleError(f"{what}: {key}: {message}")


def _bytes(path: Path, most: int) -> bytes:
    """A regular file's content; links, pipes and files over the limit are refused before a byte is read."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise BundleError(f"{path}: not a regular file; a bundle holds no links")
        if status.st_size > most:
            raise BundleError(f"{path}: {status.st_size:,} bytes are over the limit of {most:,}")
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}; copy the bundle again") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# Bounds on what a bundle states: options, limits, features, tokenizers, labels. Its hashes tell damage, not malice.

MOST_TOKENS = 1_000_000  # that `limits` may let into one text
MOST_GROWTH = 100  # how many times longer a tokenizer may make a text by replacing


def limits_of(stated: Mapping[str, Any]) -> dict[str, int]:
    """The limits of a bundle; ValueError for one that is no limit."""
    limits = {name: stated[name] for name in ("tokens", "first_tokens", TRAINED) if name == "tokens" or name in stated}
    for name, value in limits.items():
        if type(value) is not int or not 1 <= value <= MOST_TOKENS:
            raise ValueError(f"limits.{name}: {value!r} is no whole number from 1 to {MOST_TOKENS:,}")
    return limits


def check_options(options: Mapping[str, Mapping[str, Any]]) -> None:
    """ValueError for a decode option with bounds that are none; its default is checked as any value is."""
    for name, option in options.items():
        bounds = [option.get("minimum"), option.get("maximum")]
        for bound in (*bounds, option.get("exclusive_minimum"), option.get("exclusive_maximum")):
            if bound is not None and (type(bound) not in (int, float) or not math.isfinite(bound)):
                raise ValueError(f"options.{name}: the bound {bound!r}")
            if option["type"] == "size" and bound is not None and not 0 <= bound <= MOST_SIZE:
                raise ValueError(f"options.{name}: {bound!r} is no bound of a size, which is at most {MOST_SIZE:,}")
        low, high = bounds
        if low is not None and high is not None and low > high:
            raise ValueError(f"options.{name}: the minimum {low} is over the maximum {high}")


def check_features(features: Iterable[FeatureKind]) -> None:
    """ValueError for a feature that would take any amount of memory, or divide by 0."""
    for feature in features:
        if message := feature.out_of_bounds():
            raise ValueError(message)


def check_labels(kind: AnswerKind, shapes: Mapping[str, Sequence[Any]], what: str) -> None:
    """BundleError for a graph that scores another number of labels than there are."""
    for head, part in kind.parts.items():
        if not part.scored_labels:
            continue
        prefix = f"{head}." if head else ""
        scored = (shapes[prefix + part.scored_labels] or [None])[-1]
        if isinstance(scored, int) and scored != len(part.labels):
            message = f"{prefix}labels: there are {len(part.labels)}, and model.onnx scores {scored}"
            raise BundleError(f"{what}: {message}; model.onnx and bundle.json do not belong together: export it again")


def check_tokenizer(tokenizer: Tokenizer, what: str) -> None:
    """BundleError for a tokenizer without the special tokens, or one that makes a text longer without bound."""
    missing = [token for token in SPECIALS if tokenizer.token_to_id(token) is None]
    if missing:
        raise BundleError(f"{what}: has no token {', '.join(missing)}; export it again")
    if tokenizer.padding is not None or tokenizer.truncation is not None:
        raise BundleError(f"{what}: pads or truncates texts, which no bundle's tokenizer does; export it again")
    for part in (tokenizer.normalizer, tokenizer.decoder):
        if part is not None and (growth := _growth(json.loads(part.__getstate__()))) > MOST_GROWTH:
            message = (
                f"makes a text up to {growth:.2g} times longer by replacing; at most {MOST_GROWTH} times is allowed"
            )
            raise BundleError(f"{what}: {message}")


def _growth(part: Mapping[str, Any]) -> float:
    """How many times longer than its input a normalizer or decoder can make a text by what it puts in."""
    growth = 1.0
    for step in _steps(part):
        if step["type"] == "Replace":
            text = step["pattern"].get("String", "")  # of a regular expression: it may match nothing
            inserted = len(step["content"])
            growth *= max(1.0, inserted / len(text) if text else 1.0 + inserted)
        elif step["type"] == "Prepend":
            growth *= 1.0 + len(step["prepend"])
    return growth


def _steps(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    inner = part.get("normalizers") or part.get("decoders")
    if part["type"] != "Sequence" or not inner:
        yield part
        return
    for part_inside in inner:
        yield from _steps(part_inside)


# The cache of incremental decoding: which outputs of one run of a graph are which inputs of the next.

T = TypeVar("T")

PAST_BATCH, PAST_LENGTH, PAST_STATE = "past_batch_size", "past_length", "past_state"  # axes of the inputs


@dataclass(frozen=True)
class CacheEntry:
    """One tensor of the cache: (B, C) token ids, or (B, C, …) numbers of an encoder.

    Args:
        input: The graph's input; without it nothing was read before, C = 0.
        output: The graph's output that the next run takes as this input.
        slot: The shape behind (B, C); () of token ids.
        grows: Whether C counts the tokens that were read; else C is 1, for all of them.
    """

    input: str
    output: str
    slot: tuple[int, ...] = ()
    grows: bool = True

    @property
    def dtype(self) -> str:
        return "float32" if self.slot else "int64"

    @property
    def axes(self) -> tuple[str | int, ...]:
        return (PAST_BATCH, PAST_LENGTH if self.grows else PAST_STATE, *self.slot)

    def zeros(self, rows: int, slots: int) -> np.ndarray:
        """The input with so many rows and slots."""
        return np.zeros((rows, slots, *self.slot), self.dtype)

    def manifest(self) -> dict[str, Any]:
        return {
            "input": self.input,
            "output": self.output,
            "axes": list(self.axes),
            "dtype": self.dtype,
            "grows": self.grows,
        }


def cache_from(manifest: Sequence[Mapping[str, Any]]) -> tuple[CacheEntry, ...]:
    """The cache that a bundle states; KeyError, TypeError or ValueError for what is none."""
    entries = []
    for stated in manifest:
        slot = tuple(stated["axes"][2:])
        entry = CacheEntry(str(stated["input"]), str(stated["output"]), slot, stated["grows"] is True)
        if entry.manifest() != {key: stated[key] for key in entry.manifest()}:
            raise ValueError(f"cache: {stated!r}")
        entries.append(entry)
    return tuple(entries)


def next_inputs(cache: Iterable[CacheEntry], outputs: Mapping[str, T]) -> dict[str, T]:
    """The cache inputs of the next run, of the outputs of one."""
    return {entry.input: outputs[entry.output] for entry in cache}


# What bundle.json states of a pipeline, checked and built: inputs, answers, limits, options, caches.


@dataclass(frozen=True)
class Statement:
    """What a manifest states.

    Attributes:
        source: Turns records into arrays.
        kind: Turns decisions into answers.
        limits: The most tokens of a text.
        options: The decode options at their defaults.
        attended: The attention weights that the graph returns.
        cache: The cache entries of a language model.
    """

    source: InputSource
    kind: AnswerKind
    limits: Mapping[str, int]
    options: Arrays
    attended: Sequence[Attended]
    cache: Sequence[CacheEntry]


def read_statement(content: BundleContent) -> Statement:
    """What the manifest of a bundle states; BundleError for what is missing, or means nothing."""
    manifest = content.manifest
    names = manifest["field"] if isinstance(manifest["field"], dict) else ("",)
    files = {name: tokenizer_file_of(name) for name in names}
    tokenizers = {name: _tokenizer(content, file) for name, file in files.items() if file in content.files}
    try:
        heads = manifest["answer"].get("parts", {""})
        writers = {head: tokenizer_file(head) for head in heads if tokenizer_file(head) in content.files}
        targets = {head: _tokenizer(content, file) for head, file in writers.items()}
        by_file = {tokenizer_file(head): tokenizer for head, tokenizer in targets.items()}
        stated = {name: feature for name, feature in manifest["inputs"].items() if "kind" in feature}
        features = {name: feature_from(feature, by_file) for name, feature in stated.items()}
        kind = answer_from(manifest["answer"], targets)
        source = source_from(manifest["field"], features, tokenizers, kind.every_token)
        limits = limits_of(manifest["limits"])
        check_features(features.values())
        check_options(manifest["options"])
        options = option_arrays(manifest["options"], {})
        attended = attended_from(manifest.get("explain", {}))
        cache = cache_from(manifest.get("cache", []))
        if kind.is_generated and not cache:
            raise ValueError(f"cache, which the answer kind {kind.kind} needs")
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, UsageError) as error:
        raise BundleError(f"{content.path}: {MANIFEST} lacks or misstates {error}; export it again") from error
    return Statement(source, kind, limits, options, attended, cache)


def _tokenizer(content: BundleContent, name: str) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_buffer(content.files[name])
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise BundleError(f"{content.path / name}: not a tokenizer this version reads: {error}") from error
    check_tokenizer(tokenizer, str(content.path / name))
    return tokenizer


# What a bundle states of its reader in, that reader out, its options checked as those of a YAML are.


def reader_from(stated: Mapping[str, Any], plugins: Plugins) -> Any:
    """The installed reader that is called `use`, with these `options`.

    Raises:
        PluginError: if it is not installed.
        BundleError: names every option that it does not have, or that has another type.
    """
    cls = plugins.find("reader", stated["use"]).load()
    options, mistakes = validate(options_model(cls), stated["options"])
    if options is None:
        messages = "; ".join(f"{'.'.join(map(str, mistake.where))}: {mistake.message}" for mistake in mistakes)
        raise BundleError(f"bundle.json: reader.options: {messages}; export the bundle again")
    try:
        return construct(cls, **values(options))
    except UsageError as error:
        raise BundleError(f"bundle.json: reader.options: {error}") from error
