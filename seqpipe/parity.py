"""One pipeline in PyTorch and as a graph in, a tally of how far their answers agree out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from seqpipe.errors import ParityError
from seqpipe.features import Arrays, Doc
from seqpipe.learned import Learned
from seqpipe.pipeline import Pipeline
from seqpipe.predictor import Run

TIE = 1e-4  # below this margin of PyTorch's own score either of two decisions counts as equal
MOST_TIES = 1e-3  # the share of decisions that may be ties
CLOSE, RELATIVE = 1e-4, 1e-5  # how far scores may differ
SIZES, LENGTHS = (1, 2, 3, 7, 33), (1, 2, 5, 31, 128)


@dataclass
class Tally:
    """Decisions compared, ties among them, decisions that differ, and the largest difference of a score."""

    decisions: int = 0
    ties: int = 0
    different: int = 0
    worst: float = 0.0
    where: str = ""

    def check(self) -> None:
        """Raises ParityError if the graph answers differently."""
        if self.different:
            raise ParityError(
                f"{self.different} of {self.decisions} decisions differ between PyTorch and onnxruntime ({self.where}); "
                "the graph was not written. If the component is yours, look for Python values baked in at export"
            )
        if self.ties > max(1, MOST_TIES * self.decisions):
            raise ParityError(f"{self.ties} of {self.decisions} decisions hang on margins under {TIE}: too many to call them equal")


def compare(tally: Tally, pipeline: Pipeline, torch_run: Run, onnx_run: Run, feeds: Arrays, options: Arrays) -> None:
    """Runs both on one batch and adds what was found. Features must be padded with zeros; garbage there is tried too."""
    expected, got = torch_run(feeds | options), onnx_run(feeds | options)
    polluted = onnx_run(_pollute(feeds) | options)
    rows = feeds["mask"].shape[0]
    tally.decisions += rows
    for name, array in expected.items():
        if got[name].shape != array.shape:
            tally.different, tally.where = tally.different + rows, f"{name}: shape {got[name].shape}, not {array.shape}"
            return
    decided = [name for name, array in expected.items() if array.dtype.kind == "i"]
    same = np.ones(rows, bool)
    for name in decided:
        same &= (got[name] == expected[name]).reshape(rows, -1).all(1)
    if not same.all():
        tied = _margin(pipeline, feeds, expected, got) < TIE
        tally.ties += int((~same & tied).sum())
        _fault(tally, ~same & ~tied, f"{', '.join(decided)} at shape {feeds['mask'].shape}")
    for name in expected:
        if name not in decided:
            a, b = expected[name][same], got[name][same]
            gap = np.abs(a - b) - RELATIVE * np.abs(a)
            tally.worst = max(tally.worst, float(gap.max(initial=0.0)))
            _fault(tally, ~(gap <= CLOSE).reshape(len(a), -1).all(1), f"{name} off by {gap.max(initial=0.0):.2g} at shape {feeds['mask'].shape}")
        leaked = ~np.isclose(polluted[name], got[name], rtol=0, atol=CLOSE).reshape(rows, -1).all(1)
        _fault(tally, leaked, f"{name} changes with what stands in the padding, shape {feeds['mask'].shape}")


def grid(learned: Learned, seed: int, sizes: Sequence[int] = SIZES, lengths: Sequence[int] = LENGTHS) -> Iterator[Arrays]:
    """Ragged batches of random words, of every size and length, the full length at least once in each."""
    random = np.random.default_rng(seed)
    for rows in sizes:
        for longest in lengths:
            counts = random.integers(1, longest + 1, rows)
            counts[0] = longest
            yield learned.featurizer.collate([random_doc(learned, int(n), random) for n in counts])


def random_doc(learned: Learned, length: int, random: np.random.Generator) -> Doc:
    """A text of `length` random words with random ids."""
    letters = [chr(c) for c in range(97, 123)] + ["é", "播", "9", "-"]
    words = ["".join(random.choice(letters, random.integers(1, 24))) for _ in range(length)]
    ids = random.integers(1, learned.featurizer.tokenizer.get_vocab_size(), length).tolist()
    return Doc(" ".join(words), words, [(0, 0)] * length, ids)


def _margin(pipeline: Pipeline, feeds: Arrays, one: Arrays, other: Arrays) -> np.ndarray:
    """By how much PyTorch's own score prefers its decision to the other, (B,)."""
    if not hasattr(pipeline.head, "score"):
        return np.full(feeds["mask"].shape[0], np.inf)
    with torch.no_grad():
        scores = [
            pipeline.score(*({n: torch.from_numpy(np.array(a)) for n, a in arrays.items()} for arrays in (feeds, decision)))
            for decision in (one, other)
        ]
    return (scores[0] - scores[1]).abs().numpy()


def _pollute(feeds: Arrays) -> Arrays:
    """The same features with other ids in the padding."""
    outside = ~feeds["mask"]
    polluted = {}
    for name, array in feeds.items():
        if name != "mask" and array.shape[:2] == outside.shape:
            array = np.array(array)
            array[outside] = 1 if array.dtype.kind == "i" else np.nan
        polluted[name] = array
    return polluted


def _fault(tally: Tally, rows: np.ndarray, where: str) -> None:
    if rows.any():
        tally.different += int(rows.sum())
        tally.where = tally.where or where


