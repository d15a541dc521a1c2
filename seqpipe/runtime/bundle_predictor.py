"""A predictor that believes nothing a bundle's graph gives: not its numbers, not its labels, not its shapes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from seqpipe.answers.base import Answer, Kind
from seqpipe.answers.embedding import Vector
from seqpipe.answers.multi_head import Joint
from seqpipe.answers.regression import Score
from seqpipe.answers.tagging import Tags
from seqpipe.errors import BundleError, DataError
from seqpipe.features.document import Arrays, Doc
from seqpipe.features.encoding import is_library_error
from seqpipe.runtime.predictor import Predictor

PATH_SCORES = "path_scores"  # an output of the kinds tags and spans that not every graph has


class BundlePredictor(Predictor):
    """Refuses a decision that holds NaN where an answer would, or of which no answers can be made."""

    @cached_property
    def _numbers(self) -> list[tuple[str, Kind]]:
        return number_outputs(self.kind)

    def read(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        refuse_nan(self._numbers, docs, decision)
        try:
            return super().read(docs, decision)
        except BaseException as error:
            if not is_library_error(error):
                raise
            told = f"{type(error).__name__}: {error}"
            raise BundleError(
                f"the graph's outputs are no answer of the kind {self.kind.kind!r} ({told}): model.onnx and "
                "bundle.json do not belong together; export the bundle again"
            ) from error


def refuse_nan(numbers: Sequence[tuple[str, Kind]], docs: Sequence[Doc], decision: Arrays) -> None:
    """DataError if an answer to one of these texts would hold a number that is none."""
    for name, part in numbers:
        array = decision.get(name)
        if array is None or array.dtype.kind != "f":
            continue
        bad = ~np.isfinite(array) if isinstance(part, Score | Vector) else np.isnan(array)
        if not bad.any():
            continue
        if isinstance(part, Tags) and array.ndim == 2 and not name.endswith(PATH_SCORES):
            lengths = np.array([[len(doc.word_offsets)] for doc in docs])
            bad &= np.arange(array.shape[1]) < lengths  # (B, T): what follows a text means nothing
        if bad.any():
            told = f"the model's {name!r} is {'NaN' if np.isnan(array[bad]).any() else 'infinite'} for this input"
            raise DataError(f"{told}; leave it out, or train again: the weights overflow")


def number_outputs(kind: Kind) -> list[tuple[str, Kind]]:
    """The graph's outputs that may be numbers of an answer, each with the kind of the head that it belongs to."""
    parts = {f"{head}.": part for head, part in kind.parts.items()} if isinstance(kind, Joint) else {"": kind}
    return [(head + name, part) for head, part in parts.items() for name in (*part.outputs, PATH_SCORES)]
