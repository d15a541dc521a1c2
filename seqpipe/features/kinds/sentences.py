"""Feature kind `sentences`: which tokens make which sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from seqpipe.features.document import Doc
from seqpipe.features.kinds.base import BATCH, SENTENCES, FeatureKind, unknown_kind
from seqpipe.features.sentence_splitting import lines, sentences

Split = Literal["punctuation", "lines"]
_SPLITS = {"punctuation": sentences, "lines": lines}


@dataclass(frozen=True)
class Sentences(FeatureKind):
    """The position + 1 of each token of a sentence in its row of T; 0 padding.

    A sentence without tokens is none, but a text has at least one. `split` says where a sentence ends: after its
    closing mark and at line ends (`punctuation`), or at line ends alone (`lines`).
    """

    split: Split = "punctuation"
    kind = "sentences"
    shape = "(B, S, W)"
    axes = (BATCH, SENTENCES, "sentence_length")

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        counts = [self.counts(doc) for doc in docs]
        S = max(map(len, counts), default=1)
        W = max([1, *(int(count.max()) for count in counts)])
        positions = np.zeros((len(docs), S, W), np.int64)
        for row, count in zip(positions, counts, strict=True):
            row[: len(count)][np.arange(W) < count[:, None]] = np.arange(1, count.sum() + 1)
        return positions

    def counts(self, doc: Doc) -> np.ndarray:
        """How many tokens each sentence has: a token belongs to the sentence in which it begins."""
        ends = [end for _, end in _SPLITS[self.split](doc.text)]
        starts = [start for start, _ in doc.offsets]
        counts = np.bincount(np.searchsorted(ends[:-1], starts, "right"), minlength=1)
        return counts[counts > 0] if len(doc) else counts

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "split": self.split}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizers: Mapping[str, Any]) -> Self:
        if manifest["split"] not in (*_SPLITS,):
            raise unknown_kind(f"{cls.kind!r} with split {manifest['split']!r}")
        return cls(manifest["split"])
