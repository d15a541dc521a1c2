"""What every target shares: the bundle is checked, its name suits the target, and the folder appears as a whole."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template

from seqpipe.errors import UsageError
from seqpipe.files import writing_folder
from seqpipe.runtime import bundle
from seqpipe.runtime.model import verify_bundle
from seqpipe.version import VERSION

DISTRIBUTION = "seqpipe-nlp"


@dataclass(frozen=True)
class NameRule:
    """Which names a target takes.

    Args:
        pattern: What the whole name matches.
        longest: The most characters.
        words: The pattern in words.
    """

    pattern: str
    longest: int
    words: str

    def choose(self, given: str | None, content: bundle.Bundle, target: str) -> str:
        """The name that was given, else the bundle's own; UsageError if the target does not take it."""
        from seqpipe.runtime.serve.catalog import check_name

        name = content.manifest.name if given is None else given
        if not re.fullmatch(self.pattern, name) or len(name) > self.longest:
            rule = f"{self.words}, at most {self.longest} characters"
            raise UsageError(f"{target} takes no name {name!r}; give one with --name: {rule}")
        check_name(name)
        return name


def checked_bundle(path: Path, output: Path, cuda: bool = False) -> bundle.Bundle:
    """A bundle that answers its golden examples here, which is to be written to `output`.

    Those are answered on the CPU unless this machine has the GPU too: it need not be the one that serves.

    Raises:
        UsageError: if the output is there already.
        BundleError: if the bundle is damaged, or answers otherwise.
    """
    if output.is_dir():
        if any(output.iterdir()):
            raise UsageError(f"{output} is there and not empty; name another folder with --output, or remove it")
    elif output.exists() or output.is_symlink():
        raise UsageError(f"{output} is there and no folder; name another folder with --output")
    report = verify_bundle(path, "auto" if cuda else "cpu", threads=1)
    return bundle.read(path, report["sha256"])


def bundle_files(content: bundle.Bundle, folder: str) -> dict[str, bytes]:
    """The files of a bundle by their paths below the folder of the target."""
    files = {f"{folder}/{name}": data for name, data in content.files.items()}
    return {**files, f"{folder}/{bundle.MANIFEST}": (content.path / bundle.MANIFEST).read_bytes()}


def write_files(output: Path, files: Mapping[str, bytes | str]) -> None:
    """Writes the folder whole or not at all; every account may read it, as servers run under their own."""
    with writing_folder(output) as temporary:
        for name, data in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data if isinstance(data, bytes) else data.encode())
        for path in temporary.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


def requirement(cuda: bool, *extras: str) -> str:
    """What pip is asked for: this version, with the onnxruntime of the device."""
    return f"{DISTRIBUTION}[{','.join(['gpu' if cuda else 'cpu', *extras])}]=={VERSION}"


def template(name: str, /, **values: object) -> str:
    """The text of a template with its values filled in."""
    file = resources.files("seqpipe.commands.deploy") / "templates" / f"{name}.txt"
    return Template(file.read_text(encoding="utf-8")).substitute(values)


def next_steps(output: Path, *lines: str) -> str:
    """What the command says at its end."""
    return "\n".join([f"wrote {output}", "", "next:", *(f"  {line}" for line in lines)])


def quoted(path: Path | str) -> str:
    """A path as a shell takes it."""
    return shlex.quote(str(path))
