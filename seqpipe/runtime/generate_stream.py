"""Stream the continuation of a prompt, piece by piece, as soon as each is generated.

The same graph as for whole answers: the cache that one run returns is an input of the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from seqpipe.answers.text import Generation
from seqpipe.errors import UsageError
from seqpipe.features.document import Record
from seqpipe.features.vocabulary import EOS, special_id
from seqpipe.runtime.cache_entries import next_inputs
from seqpipe.runtime.decode_options import chosen

if TYPE_CHECKING:
    from seqpipe.runtime.model import Model

MOST = 8  # tokens of a run; the first has one, so that nobody waits for it
_TORN = "\ufffd"  # how bytes are decoded that are no whole character yet


def stream(model: Model, record: Record, **options: Any) -> Iterator[str]:
    """Pieces of text that together are what `model(record)` writes behind the prompt.

    Raises:
        UsageError: if the bundle is no language model, or several answers are asked for.
    """
    predictor, kind = model.predictor, model.predictor.kind
    if "streaming" in model.manifest:
        raise UsageError("this bundle answers in pieces: feed them to `open_stream()`")
    if not kind.is_generated:
        raise UsageError("streaming needs a language-model bundle (head lm)")
    if several := [name for name in ("beams", "n_best") if options.get(name, 1) != 1]:
        raise UsageError(f"stream: a text that is written as it comes is one alone; leave {several[0]} out")
    (doc,) = predictor.docs([record])
    option_arrays = chosen(predictor.options, options, kind).of([doc])
    return _pieces(model, cast(Generation, kind), doc, option_arrays)


def prompt(model: Model, record: Record) -> str:
    """What the answer to a prompt begins with, before the pieces of `stream`."""
    (doc,) = model.predictor.docs([record])
    return cast(Generation, model.predictor.kind).prompt(doc)


def _pieces(model: Model, kind: Generation, doc: Any, option_arrays: dict[str, np.ndarray]) -> Iterator[str]:
    most, least, numbers = len(option_arrays["max_length"]), int(option_arrays["min_length"]), option_arrays["uniform"]
    most = min(most, numbers.shape[2]) if numbers.shape[2] else most
    ends = {special_id(kind.tokenizer, EOS), *option_arrays["stop"].ravel().tolist()}
    feeds = model.predictor.featurizer.collate([doc])
    cache: dict[str, np.ndarray] = {}
    written: list[int] = []
    shown, size = "", 1
    while len(written) < most:
        n = min(size, most - len(written))
        options = option_arrays | {
            "max_length": np.zeros(n, np.int64),
            "min_length": np.array(max(0, least - len(written)), option_arrays["min_length"].dtype),
            "uniform": numbers[:, :, len(written) : len(written) + n],
        }
        decision = model.run_with_cache(feeds | options | cache)
        tokens = [token for token in decision["tokens"][0, 0].tolist() if token]
        written += tokens
        ended = len(tokens) < n or tokens[-1] in ends
        text = kind.decode(written, doc)
        whole = text if ended or len(written) == most else text.rstrip(_TORN)
        yield whole[len(shown) :]
        if ended:
            return
        shown, size = whole, min(2 * size, MOST)
        feeds = feeds | {"ids": np.array([tokens[-1:]], np.int64), "mask": np.ones((1, 1), bool)}
        cache = next_inputs(model.cache, decision)
