"""Check that an encoder which decodes incrementally gives the same vectors as in one run over the whole text."""

from __future__ import annotations

import torch
from torch import Tensor

from seqpipe.answers.text import PRESENT
from seqpipe.config.contract import has_member, member
from seqpipe.nn.incremental import IncrementalStages, cache_entries
from seqpipe.runtime.bundle import next_inputs
from seqpipe.testing.bench import Bench
from seqpipe.testing.report import Check, FaultError
from seqpipe.testing.shapes import SHAPES

PIECES = "a text in pieces is the text as a whole"
LENGTHS, PROMPTS = (9, 7, 5), (4, 2, 1)  # of a ragged batch
CLOSE = 1e-4
NAN = float("nan")

_PIECES = (
    "What `prefill` and `step` make of a token given the memory of those before must be what `forward` makes of it in "
    "the whole text, and `import_cache(export_cache(…))` must be that memory again: see "
    "`seqpipe.nn.incremental.IncrementalEncoder`"
)
_SLOTS = "an encoder whose cache has a slot for each token states `cache_per_token = True`, and no other does"


def incremental_checks(bench: Bench) -> list[Check]:
    """The check, for an encoder that is causal under these options."""
    causal_fix = member(bench.subject.cls, "causal_fix")
    if bench.subject.kind != "encoder" or causal_fix is None or causal_fix(bench.subject.chosen):
        return []
    return [Check(PIECES, lambda: _in_pieces(bench), _PIECES, (SHAPES,))]


@torch.no_grad()
def _in_pieces(bench: Bench) -> None:
    """Reads a prompt, then two tokens step by step, then, from the exported cache, a piece of two more."""
    pipeline = bench.pipeline(2, NAN).eval()
    feeds = bench.artifacts.featurizer.collate(bench.docs(LENGTHS))
    names = {name: torch.from_numpy(array) for name, array in feeds.items()}
    ids, whole = names["ids"], pipeline(dict(names))["x"]
    others = {name: tensor for name, tensor in names.items() if name not in ("ids", "mask")}
    embedding = [] if has_member(pipeline.encoder[0], "embed") else [*pipeline.embedding]
    rows, prompts = torch.arange(len(ids)), torch.tensor(PROMPTS)

    def same(what: str, x: Tensor, at: Tensor) -> None:
        off = (x - whole[rows, at]).abs().max().item()
        if not off <= CLOSE:
            raise FaultError(
                f"x of a token {what} is off by {off:.2g} from that of `forward` over the whole text", _PIECES
            )

    incremental = IncrementalStages(embedding, [*pipeline.encoder], others, adds_bos=False)
    prefix = incremental.prefill(ids[:, : max(PROMPTS)], torch.arange(max(PROMPTS)) < prompts[:, None])
    for t in range(max(PROMPTS) - 1):
        at = torch.minimum(torch.tensor(t), (prompts - 2).clamp(min=0))
        some = torch.where((prompts > 1)[:, None], prefix.x[rows, at], whole[rows, at])
        same("that was read at once", some, at)
    state = incremental.start(prefix, 2)
    for t in range(2):
        x, state = incremental.step(ids[rows, prompts - 1 + t], prefix, state)
        same("that was read step by step", x, prompts - 1 + t)
    written = torch.stack([ids[rows, prompts + t] for t in range(2)], 1)
    cache = incremental.export_cache(
        prefix, written, torch.full_like(prompts, 2), torch.zeros_like(prompts, dtype=torch.bool), state
    )
    for number, encoder in enumerate(pipeline.encoder):
        slots = cache[f"{PRESENT}{number}"].shape[1]
        if (slots > 1) != member(encoder, "cache_per_token"):
            raise FaultError(f"its cache of several tokens has {slots} slot{'s' * (slots > 1)}", _SLOTS)
    past = next_inputs(cache_entries([*pipeline.encoder]), cache)
    incremental = IncrementalStages(embedding, [*pipeline.encoder], others | past, adds_bos=False)
    prefix = incremental.prefill(
        torch.stack([ids[rows, prompts + t] for t in (1, 2)], 1), torch.ones(len(ids), 2, dtype=torch.bool)
    )
    same("behind an imported cache", prefix.x[:, 0], prompts + 1)
    x, _ = incremental.step(ids[rows, prompts + 2], prefix, incremental.start(prefix, 1))
    same("read step by step behind an imported cache", x, prompts + 2)
