"""The run of a pipeline, for Python: its folder, settings, history, scores and bundle."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqpipe.api.bundle import Bundle
from seqpipe.api.model import Data
from seqpipe.api.notebook import style_html
from seqpipe.config.contract import metric_types
from seqpipe.config.run_layout import BUNDLE
from seqpipe.errors import UsageError, install_command
from seqpipe.files import Rows
from seqpipe.runs.compare import Comparison, compare
from seqpipe.runs.results import RunFolder

if TYPE_CHECKING:
    from seqpipe.report.page import HtmlReport


class Run(RunFolder):
    """Folder of one training, with all its results: `Run("runs/ner")`, or the result of `Pipeline.run`.

    Args:
        folder: Folder of the run.
        config: Settings of the run; by default they are read from the folder at first use.

    Raises:
        UsageError: if the folder is not a run.
    """

    def _repr_html_(self) -> str:
        from seqpipe.answers.metrics.numbers import format_score
        from seqpipe.evaluation.scores import headlines
        from seqpipe.explain.html import card
        from seqpipe.report.page import STYLES, curves

        metrics, metric = metric_types(self.config.head), self.outcome.get("metric")
        scores, history = Rows(), self.history
        for name, values in (self.scores or {}).items():
            shown = {key: format_score(key, value, metrics) for key, value in headlines(values, metric).items()}
            scores.append({"set": name, **shown})
        try:
            drawn = f'<div class="plots">{"".join(curves(history, metric, metrics))}</div>'
        except ImportError:  # matplotlib is not installed
            drawn = history.to_html() + f"<p>For curves: {escape(install_command('report'))}</p>"
        lines = "".join(f"<p>{escape(line)}</p>" for line in self.outcome_lines())
        return style_html(card(escape(self.folder.name), scores.to_html() + lines + drawn), *STYLES)

    @property
    def bundle(self) -> Bundle:
        """The exported bundle.

        Raises:
            UsageError: if the run was not exported yet.
        """
        if folds := self.folds:
            raise UsageError(
                f"{self.folder}: has the answers of {len(folds)} runs, and no bundle; use that of {folds[0]}"
            )
        if not (self.bundle_folder / BUNDLE).exists():
            raise UsageError(f"{self.folder}: has no bundle yet; `seqpipe export {self.folder}` makes one")
        return Bundle(self.bundle_folder)

    def compare(self, *targets: str | PathLike[str], **options: Any) -> Comparison:
        """Compare other runs or bundles with this run; options and errors are those of `seqpipe.compare`."""
        return compare(self, *targets, **options)

    def errors(self, set: str | None = None) -> Rows:
        """Return the wrong answers on a test set, by default on all, the most confident first.

        Keys: those of `answers`, with the answer of one `head` (empty for the only one); `text` of the input, and its
        `tokens`; `gold`, `predicted`; `items`, the wrong labels, tags or spans (`gold`, `predicted`, `score`; of spans
        `kind`, such as `wrong boundary`); `score`, the probability of the answer; `wrongness`, by which they are
        sorted: the probability of the answer, or the greatest of a wrong item; the error of a number.
        """
        from seqpipe.evaluation.analysis import errors

        return Rows(errors(self._judge(set)))

    def confusion(self, set: str | None = None) -> Rows:
        """Return how often a label of the reference (`gold`) was answered with a label (`predicted`): the `count`.

        None is a label that is missing on one side. Further keys: `set`, of several heads `head`, of spans the `kind`
        of error, of a structured answer `field`.
        """
        from seqpipe.evaluation.analysis import confusion

        return Rows(confusion(self._judge(set)))

    def _judge(self, name: str | None) -> list[dict[str, Any]]:
        from seqpipe.evaluation.analysis import judge
        from seqpipe.training.artifacts import Artifacts

        artifacts, answers = Artifacts.load(self.folder), [row for row in self.answers if name in (None, row["set"])]
        if name and not answers:
            sets = ", ".join(self.scores or ()) or "none"
            raise UsageError(f"set: {self.folder} has no answers on {name!r}; its sets are: {sets}")
        return [*judge(artifacts.task, artifacts.featurizer, answers)]

    def report(
        self,
        output: str | Path | None = None,
        by: str | None = None,
        perturb: Sequence[str] = (),
        swap: Sequence[tuple[str, str]] = (),
    ) -> HtmlReport:
        """Write the report of this run as one HTML file, and return it; a notebook shows it.

        Args:
            output: The file; by default report.html in the folder of the run.
            by: A field of the records, for whose values the scores are shown too.
            perturb: Perturbations whose drop of the score is shown, as in `Model.robustness`.
            swap: Pairs of words; the share of answers that change when they are swapped is shown, as in `Model.swap`.

        Raises:
            EnvError: without matplotlib and Jinja2, which the extra `report` installs.
        """
        from seqpipe.report.collect import report_run

        return report_run(self, Path(output) if output else None, by, perturb, swap)

    def robustness(self, data: Data, **options: Any) -> Rows:
        """Return the scores of the bundle on perturbed records; see `Model.robustness`."""
        return self.bundle.load().robustness(data, **options)

    def swap(self, data: Data, pairs: Sequence[tuple[str, str]]) -> Rows:
        """Return the share of the bundle's answers that change with swapped words; see `Model.swap`."""
        return self.bundle.load().swap(data, pairs)
