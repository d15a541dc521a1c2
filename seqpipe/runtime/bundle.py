"""Read and write bundles: a folder with a graph, its tokenizers and bundle.json.

Every byte is hashed before anything parses it: bundle.json seals itself (its last entry is the sha256 of what stands
before it) and holds the hashes of all other files. That shows damage, not forgery; forged bundles meet the limits here
and in `seqpipe.runtime.bundle_check`. `docs/bundle-format.md` specifies the format.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqpipe.errors import BundleError, UsageError
from seqpipe.features.splitting import CUTS
from seqpipe.files import json_bytes, sha256, writing_folder

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
class Bundle:
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


def read(path: Path, pin: str | None = None) -> Bundle:
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
    return Bundle(path, manifest, files, digest)


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
