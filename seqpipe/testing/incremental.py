"""Check that an encoder which decodes incrementally gives the same vectors as in one run over the whole text."""

from __future__ import annotations

import torch
from torch import Tensor

from seqpipe.answers.generation import PAST, PRESENT
from seqpipe.config.contract import has_member, member
from seqpipe.nn.incremental import Chain
from seqpipe.testing.bench import Bench
from seqpipe.testing.report import Check, FaultError
from seqpipe.testing.shapes import SHAPES

PIECES = "a text in pieces is the text as a whole"
LENGTHS, PROMPTS = (9, 7, 5), (4, 2, 1)  # of a ragged batch
CLOSE = 1e-4
NAN = float("nan")

_PIECES = (
    "What `read` and `step` make of a token given the memory of those before must be what `forward` makes of it in the "
    "whole text, and `unpacked(packed(…))` must be that memory again: see `seqpipe.nn.kv_cache.Causal`"
)


def incremental_checks(bench: Bench) -> list[Check]:
    """The check, for an encoder that is causal under these options."""
    goes_on = member(bench.subject.cls, "goes_on")
    if bench.subject.kind != "encoder" or goes_on is None or goes_on(bench.subject.chosen):
        return []
    return [Check(PIECES, lambda: _in_pieces(bench), _PIECES, (SHAPES,))]


@torch.no_grad()
def _in_pieces(bench: Bench) -> None:
    """Reads a prompt, then two tokens step by step, then, of what was kept, a piece of two more."""
    pipeline = bench.pipeline(2, NAN).eval()
    feeds = bench.learned.featurizer.collate(bench.docs(LENGTHS))
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

    chain = Chain(embedding, [*pipeline.encoder], others, begins=False)
    read = chain.read(ids[:, : max(PROMPTS)], torch.arange(max(PROMPTS)) < prompts[:, None])
    for t in range(max(PROMPTS) - 1):
        at = torch.minimum(torch.tensor(t), (prompts - 2).clamp(min=0))
        some = torch.where((prompts > 1)[:, None], read.x[rows, at], whole[rows, at])
        same("that was read at once", some, at)
    state = chain.start(read, 2)
    for t in range(2):
        x, state = chain.step(ids[rows, prompts - 1 + t], read, state)
        same("that was read step by step", x, prompts - 1 + t)
    written = torch.stack([ids[rows, prompts + t] for t in range(2)], 1)
    cache = chain.kept(read, written, torch.full_like(prompts, 2), torch.zeros_like(prompts, dtype=torch.bool), state)
    past = {PAST + name.removeprefix(PRESENT): tensor for name, tensor in cache.items()}
    chain = Chain(embedding, [*pipeline.encoder], others | past, begins=False)
    read = chain.read(
        torch.stack([ids[rows, prompts + t] for t in (1, 2)], 1), torch.ones(len(ids), 2, dtype=torch.bool)
    )
    same("behind what was kept", read.x[:, 0], prompts + 1)
    x, _ = chain.step(ids[rows, prompts + 2], read, chain.start(read, 1))
    same("read step by step behind what was kept", x, prompts + 2)
