"""The folder of an exported pipeline, for Python."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from seqpipe.api.model import Model, load
from seqpipe.report.collect import report_bundle
from seqpipe.report.page import HtmlReport
from seqpipe.runtime import bundle
from seqpipe.runtime.manifest import Manifest
from seqpipe.runtime.opened import Verification, verify_bundle
from seqpipe.runtime.session import RUN_SECONDS


class Bundle:
    """Folder of an exported pipeline: `Bundle("runs/ner/bundle")`, or the bundle of a `Run`.

    Args:
        path: Folder of the bundle.
        sha256: The required sha256 of bundle.json, which has those of all other files.
    """

    def __init__(self, path: str | Path, sha256: str | None = None):
        self.path, self.sha256 = Path(path), sha256

    def __repr__(self) -> str:
        return f"Bundle({str(self.path)!r})"

    def __fspath__(self) -> str:
        return str(self.path)

    @cached_property
    def manifest(self) -> Manifest:
        """Manifest of the bundle; BundleError if it is damaged, hostile, of another version, or was replaced."""
        return bundle.read_manifest(self.path, self.sha256)[0]

    def load(self, device: str = "auto", threads: int | None = None, *, timeout: float | None = RUN_SECONDS) -> Model:
        """Open the bundle; arguments and errors are those of `seqpipe.load`."""
        return load(self.path, device, threads, sha256=self.sha256, timeout=timeout)

    def verify(self, device: str = "auto", threads: int | None = None) -> Verification:
        """Check the hashes, and repeat the golden examples on this machine.

        Raises:
            BundleError: if the bundle answers differently from the exporting machine, or is refused.
        """
        return verify_bundle(self.path, device, threads, self.sha256)

    def report(
        self,
        data: str | Path,
        output: str | Path | None = None,
        by: str | None = None,
        perturb: Sequence[str] = (),
        swap: Sequence[tuple[str, str]] = (),
    ) -> HtmlReport:
        """Answer the records of a data file, write the report about the answers as one HTML file, and return it.

        Args:
            data: A file that the bundle's reader reads, with references.
            output: The file of the report; by default `<name of the data>-report.html` in the current folder.
            by: A field of the records, whose values the scores are also shown for.
            perturb: Perturbations whose drop of the score is shown, as in `Model.robustness`.
            swap: Pairs of words; the share of answers that change when they are swapped is shown, as in `Model.swap`.

        Raises:
            EnvError: without matplotlib and Jinja2, which the extra `report` installs.
        """
        return report_bundle(self.path, Path(data), Path(output) if output else None, by, perturb, swap)
