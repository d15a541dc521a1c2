"""The run of a pipeline as a value: its folder, settings, history, scores and bundle."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqpipe import files
from seqpipe.config.run_layout import ANSWERS, BUNDLE, CHECKPOINTS, HISTORY, OUTCOME, ROUNDS, SCORES, STATE, YAML
from seqpipe.errors import UsageError, install_command
from seqpipe.files import Rows

if TYPE_CHECKING:
    from seqpipe.api.model import Bundle, Data
    from seqpipe.config.loader import Config
    from seqpipe.report.page import Report
    from seqpipe.runs.compare import Comparison

RUNS = Path("runs")  # folder of all runs


class Run:
    """Folder of one training, with all its results: `Run("runs/ner")`, or the result of `Pipeline.run`.

    Args:
        folder: Folder of the run.
        config: Settings of the run; by default they are read from the folder at first use.

    Raises:
        UsageError: if the folder is not a run.
    """

    def __init__(self, folder: str | Path, config: Config | None = None):
        self.folder = Path(folder)
        self._config = config
        if config is None and not (self.folder / STATE).exists():
            raise UsageError(
                f"{self.folder}: not a run (no {STATE}); name a folder that `seqpipe train` or `seqpipe run` wrote"
            )

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        from seqpipe.answers.metrics.numbers import format_score
        from seqpipe.api.notebook import style_html
        from seqpipe.config.contract import metric_types
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

    @cached_property
    def config(self) -> Config:
        """The checked settings; the data and the runs that this one was initialised from may be missing."""
        from seqpipe.config.loader import load

        return self._config or load(self.folder / YAML, files=False, runs=False)

    @property
    def scores(self) -> dict[str, Any] | None:
        """The scores on each test set by its name, on `dev` if there is none; None before they are computed."""
        path = self.folder / SCORES
        return files.read_json(path) if path.exists() else None

    @property
    def outcome(self) -> dict[str, Any]:
        """The outcome of training (`seqpipe.training.progress.outcome_of`); empty before its end."""
        path = self.folder / OUTCOME
        return files.read_json(path) if path.exists() else {}

    @property
    def history(self) -> Rows:
        """The epochs trained so far, a row for each.

        Keys: `epoch`, its number, from 1; `step`, optimiser steps so far; `loss`, mean loss of its batches; `lr`,
        learning rate at its end; `seconds`, time without the scoring of dev data; `best`, whether its weights were the
        best so far; `gradients`, the mean norm of the gradients at some steps by stage; with dev data `dev`, the scores
        on it, None for one that is not finite, and `train`, those on a sample of the training records. A run that
        diverged has a last row with the reason as `diverged`.
        """
        return Rows(json_lines(self.checkpoints / HISTORY))

    @property
    def answers(self) -> Rows:
        """The records of the test sets, of dev if there is none, and the answers: rows of `set`, `record`, `answer`.

        Empty before they are evaluated, and for language models, whose score needs no answers.
        """
        return Rows(json_lines(self.folder / ANSWERS))

    @property
    def self_training(self) -> Rows:
        """The trainings of `train.self_training`, a row for each; empty for others.

        Keys: `round`, 0 without unlabelled texts; `threshold`; `texts`, unlabelled ones that were training data; `dev`,
        the score on dev; `kept`, whether this training is that of the run.
        """
        path = self.folder / ROUNDS
        return Rows(files.read_json(path) if path.exists() else [])

    @property
    def folds(self) -> list[Path]:
        """Folders of the runs whose answers this run of `Pipeline.run_folds` has, by fold; empty for others."""
        return [self.folder.parent / name for name in files.read_json(self.folder / STATE).get("folds", ())]

    @property
    def parent(self) -> Path | None:
        """Folder of the run that this one, with more data, was initialised from (`Pipeline.run(data_add=...)`)."""
        name = files.read_json(self.folder / STATE).get("parent")
        return self.folder.parent / name if name else None

    @property
    def bundle(self) -> Bundle:
        """The exported bundle.

        Raises:
            UsageError: if the run was not exported yet.
        """
        from seqpipe.api.model import Bundle

        if folds := self.folds:
            raise UsageError(
                f"{self.folder}: has the answers of {len(folds)} runs, and no bundle; use that of {folds[0]}"
            )
        if not (self.bundle_folder / BUNDLE).exists():
            raise UsageError(f"{self.folder}: has no bundle yet; `seqpipe export {self.folder}` makes one")
        return Bundle(self.bundle_folder)

    @property
    def bundle_folder(self) -> Path:
        """Folder of the bundle, which exists once the run is exported."""
        return self.folder / "bundle"

    @property
    def checkpoints(self) -> Path:
        """Folder of the training state and the best weights."""
        return self.folder / CHECKPOINTS

    def compare(self, *targets: str | Path | Run | Bundle, **options: Any) -> Comparison:
        """Compare other runs or bundles with this run; options and errors are those of `seqpipe.compare`."""
        from seqpipe.runs.compare import compare

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
    ) -> Report:
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

    def outcome_lines(self) -> list[str]:
        """Return the outcome of training as text, with the command that trains longer."""
        from seqpipe.config.contract import metric_types
        from seqpipe.training.progress import outcome_lines

        return outcome_lines(self.outcome, metric_types(self.config.head), f"seqpipe run {self.folder / YAML}")


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSONL file; none if there is no such file."""
    if path.exists():
        with path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)
