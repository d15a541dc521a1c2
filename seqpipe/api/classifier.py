"""A text classifier with the interface of scikit-learn, whose model is a bundle."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe.api.memory import write_records
from seqpipe.api.pipeline import Pipeline
from seqpipe.config.yaml import parse_tree
from seqpipe.errors import EnvError, UsageError
from seqpipe.init import init_yaml

try:
    from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
    from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]
except ModuleNotFoundError as error:
    raise EnvError("seqpipe.Classifier needs scikit-learn: pip install scikit-learn") from error


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A text classifier for scikit-learn's `Pipeline`, `cross_val_score` and `GridSearchCV`.

    Keys of the YAML are parameters: `Classifier(**{"train.epochs": 20})`, and `{"train.epochs": [5, 20]}` in a grid.

    Args:
        source: A YAML with the head `label`, or its content as a dict, whose data are replaced; None: what `seqpipe
            init` writes for the texts.
        runs: Folder of the runs; each fit is the run of its texts and settings, and a finished one is kept.
        keys: Overrides of keys of the YAML.

    Attributes:
        classes_: The labels (L,), sorted.
        model_: The model, a `seqpipe.Model`.
        run_: The run of the last fit.
    """

    def __init__(self, source: str | Path | Mapping[str, Any] | None = None, *, runs: str | Path = "runs", **keys: Any):
        self.source, self.runs, self.keys = source, runs, keys

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the source, the folder of the runs and the overridden keys."""
        return {"source": self.source, "runs": self.runs, **self.keys}

    def set_params(self, **params: Any) -> Classifier:
        """Set the source, the folder of the runs and keys of the YAML."""
        self.source, self.runs = params.pop("source", self.source), params.pop("runs", self.runs)
        self.keys = {**self.keys, **params}
        return self

    def fit(self, X: Iterable[str], y: Iterable[Any]) -> Classifier:  # noqa: N803 (the names of scikit-learn)
        """Train on texts (N,) and their labels (N,), export and verify; errors are those of `Pipeline.run`."""
        texts, given = _texts(X), [*y]
        labels = np.asarray(given)
        if len(texts) != len(labels):
            raise UsageError(f"fit: {len(texts):,} texts, but {len(labels):,} labels; give a label for each text")
        self.classes_ = np.unique(labels)
        if labels.ndim != 1 or any(label is None or label != label for label in given):
            raise UsageError("fit: y must be a label for each text, without missing ones")
        rows = [{"text": text, "label": str(label)} for text, label in zip(texts, labels, strict=True)]
        data = write_records(rows, Path(self.runs))
        content = self._content(data)
        named = hashlib.sha256(json.dumps([data.stem, content, self.keys], default=str).encode())
        content |= {"name": f"classifier-{named.hexdigest()[:12]}"}
        self.run_ = Pipeline(content, self.keys).run(runs=self.runs, progress=False)
        self.model_ = self.run_.bundle.load()
        return self

    def _content(self, data: Path) -> dict[str, Any]:
        """Return the content of the YAML with these training data."""
        if self.source is None:
            with tempfile.TemporaryDirectory() as folder:
                path = init_yaml(data, Path(folder) / "classifier.yaml", None, "label", "label", ["text"])
                content: Any = parse_tree(path.read_bytes(), str(path)).data
        elif isinstance(self.source, Mapping):
            content = dict(self.source)
        else:
            content = parse_tree(Path(self.source).read_bytes(), str(self.source)).data
        kept = {key: value for key, value in content.get("data", {}).items() if isinstance(value, float)}
        return {**content, "data": {**kept, "reader": {"use": "jsonl"}, "train": str(data.absolute())}}

    def predict(self, X: Iterable[str]) -> np.ndarray:  # noqa: N803
        """Return the label of each text (N,)."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def predict_proba(self, X: Iterable[str]) -> np.ndarray:  # noqa: N803
        """Return the probabilities of the labels of each text (N, L), in the order of `classes_`."""
        check_is_fitted(self)
        answers: Sequence[Any] = self.model_(_texts(X), n_best=len(self.classes_))
        columns = {str(label): column for column, label in enumerate(self.classes_)}
        probabilities = np.zeros((len(answers), len(columns)))
        for number, answer in enumerate(answers):
            for part in answer:
                if part["label"] is None:
                    raise UsageError(f"row {number}: a text without words has no label; leave it out")
                probabilities[number, columns[part["label"]]] = part["score"]
        return probabilities


def _texts(texts: Iterable[Any]) -> list[str]:
    """Return the texts of a list, an array (N,) or a column; UsageError for others, and for a missing text."""
    if isinstance(texts, str) or hasattr(texts, "columns"):
        raise UsageError("X must be a list, an array or a column of texts, not one text or a data frame")
    listed = [*texts]
    for number, text in enumerate(listed):
        if not isinstance(text, str):
            raise UsageError(f"X: row {number} is {type(text).__name__}, not a text; leave it out, or fill it")
    return listed
