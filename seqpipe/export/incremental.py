"""Compare incremental decoding, with the cache as an input, with decoding in one run."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from seqpipe.errors import PluginError
from seqpipe.export.parity import TIE, Tally, compare, given_to, margins
from seqpipe.features.document import Arrays
from seqpipe.runtime.cache_entries import next_inputs
from seqpipe.runtime.decode_options import Known
from seqpipe.runtime.predictor import Run
from seqpipe.training.pipeline import Pipeline

PIECES = (1, 2, 4)  # tokens of each run after the prompt


def compare_pieces(
    tally: Tally, pipeline: Pipeline, torch_run: Run, onnx_run: Run, batches: Iterable[Arrays], options: Known
) -> None:
    """Writes behind each text of a batch in runs of `PIECES`, given the cache, and adds to the tally.

    Each run is compared with PyTorch on the same `past.…`, and the tokens of all runs with those of one run.

    Args:
        tally: Counts what differs.
        pipeline: Of a language model.
        torch_run: Features, options and cache to a decision, in PyTorch.
        onnx_run: The same in onnxruntime.
        batches: Features of texts, the prompts.
        options: Decode options of the head.

    Raises:
        PluginError: if the head lacks the options that say how long a text is.
    """
    if missing := [name for name in ("max_length", "min_length") if name not in options]:
        raise PluginError(
            f"head: {type(pipeline.heads[0]).__name__} continues texts without the decode option {missing[0]!r}; add it"
        )
    for feeds in batches:
        given = given_to(feeds, options, {})
        whole = onnx_run(feeds | given | _exactly(sum(PIECES), given))
        pieces, now, past = [], feeds, dict[str, np.ndarray]()
        for length in PIECES:
            arrays = given | _exactly(length, given)
            _, got, _ = compare(tally, pipeline, torch_run, onnx_run, now, arrays | past, garbage=False)
            pieces.append(got["tokens"])
            past = next_inputs(pipeline.cache, got)
            now = feeds | {"ids": got["tokens"][:, 0, -1:], "mask": np.ones((len(got["tokens"]), 1), bool)}
        joined = np.concatenate(pieces, 2)
        differ = (joined != whole["tokens"]).any((1, 2))
        if differ.any():
            tied = margins(pipeline, feeds, whole, whole | {"tokens": joined}) < TIE
            tally.ties += int((differ & tied).sum())
            tally.different += int((differ & ~tied).sum())
            tally.where = tally.where or "a text in pieces, `past.…` given, is not the text as a whole"
        tally.decisions += len(differ)


def _exactly(length: int, given: Arrays) -> Arrays:
    """So many tokens, and no end before."""
    return {"max_length": np.zeros(length, np.int64), "min_length": np.array(length, given["min_length"].dtype)}
