"""Compare incremental decoding, with the graph's cache as input, with decoding in one run."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from seqpipe.errors import PluginError
from seqpipe.export.parity.decisions import TIE, DecisionParity, margins
from seqpipe.export.parity.trial_options import option_inputs
from seqpipe.features.document import Arrays
from seqpipe.runtime.cache_entries import next_inputs

PIECES = (1, 2, 4)  # tokens of each run after the prompt


def compare_pieces(parity: DecisionParity, batches: Iterable[Arrays]) -> None:
    """Continue each text of a batch in runs of `PIECES` with the cache of the run before, and add to the tally.

    Each run is compared with PyTorch on the same `past.…`, and the tokens of all runs with those of one run.

    Args:
        parity: Of a pipeline with a cache.
        batches: Features of texts, the prompts.

    Raises:
        PluginError: if the head lacks the options that say how long a text is.
    """
    pipeline, options, tally = parity.pipeline, parity.options, parity.tally
    if missing := [name for name in ("max_length", "min_length") if name not in options]:
        raise PluginError(
            f"head: {type(pipeline.heads[0]).__name__} continues texts without the decode option {missing[0]!r}; add it"
        )
    for feeds in batches:
        defaults = option_inputs(feeds, options, {})
        whole = parity.onnx_run(feeds | defaults | _exactly(sum(PIECES), defaults))
        pieces, now, past = [], feeds, dict[str, np.ndarray]()
        for length in PIECES:
            inputs = defaults | _exactly(length, defaults)
            _, got, _ = parity.compare(now, inputs | past, garbage=False)
            pieces.append(got["tokens"])
            past = next_inputs(pipeline.cache, got)
            now = feeds | {"ids": got["tokens"][:, 0, -1:], "mask": np.ones((len(got["tokens"]), 1), bool)}
        joined = np.concatenate(pieces, 2)
        differ = (joined != whole["tokens"]).any((1, 2))
        if differ.any():
            tied = margins(pipeline, feeds, whole, whole | {"tokens": joined}) < TIE
            tally.ties += int((differ & tied).sum())
            tally.different += int((differ & ~tied).sum())
            tally.where = tally.where or "a text in pieces, with `past.…`, is not the text as a whole"
        tally.decisions += len(differ)


def _exactly(length: int, defaults: Arrays) -> Arrays:
    """So many tokens, and no end before."""
    return {"max_length": np.zeros(length, np.int64), "min_length": np.array(length, defaults["min_length"].dtype)}
