"""Check that an encoder or a head that answers in pieces answers as over the whole text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from seqpipe.answers.text import PAST
from seqpipe.answers.types import Answer
from seqpipe.config.contract import has_member, member
from seqpipe.config.signature import call
from seqpipe.export.parity.decisions import CLOSE
from seqpipe.export.parity.gate import pieces_of
from seqpipe.features.document import Doc
from seqpipe.nn.incremental import HEAD, Piece, read_piece, stage_entries
from seqpipe.runtime.bundle import next_inputs
from seqpipe.runtime.model import same_answer
from seqpipe.testing.bench import Bench, tensors
from seqpipe.testing.report import Check, FaultError
from seqpipe.testing.shapes import SHAPES

STREAMS = "answers in pieces are those of the whole text"
LENGTHS, SIZES = (9, 4, 1, 6), (1, 2, 3)  # of a ragged batch, and words of a piece
NAN = float("nan")

_ENCODER = (
    "What `prefill` makes of a token, given the cache of the tokens before, must be what `forward` makes of it in the "
    "whole text; a row without tokens keeps its cache, and one of which nothing was read starts as without any. See "
    "`seqpipe.nn.incremental.read_piece`; an encoder with `tokenwise` may look at the words of a piece alone"
)
_HEAD = (
    "What `decide_piece` decides, given the `state` that it returned for the tokens before, must be what `decide` "
    "decides about them in the whole text; a row without tokens keeps its state, which is 0 where nothing was read"
)


def streaming_checks(bench: Bench) -> list[Check]:
    """The check, for an encoder or a head that answers in pieces under these options."""
    cls = bench.subject.cls
    try:
        chosen = bench.subject.chosen
    except FaultError:  # another check reports options that do not fit
        return []
    if bench.subject.kind == "head":
        problem = member(cls, "streaming_problem")
        applies = problem is not None and not problem(chosen)
        return [Check(STREAMS, lambda: _decides_in_pieces(bench), _HEAD, (SHAPES,))] if applies else []
    causal_fix = member(cls, "causal_fix")
    causal = causal_fix is not None and not causal_fix(chosen)
    if bench.subject.kind != "encoder" or not (causal or member(cls, "tokenwise")):
        return []
    return [Check(STREAMS, lambda: _reads_in_pieces(bench), _ENCODER, (SHAPES,))]


@torch.no_grad()
def _reads_in_pieces(bench: Bench) -> None:
    docs = bench.docs(LENGTHS)
    pipeline = bench.pipeline(2, NAN).eval()
    whole: Tensor = pipeline(tensors(bench.artifacts.featurizer.collate(docs)))["x"]  # (B, N, D)
    for size in SIZES:
        done = [0] * len(docs)
        for piece in _read(bench, docs, size):
            for row, count in enumerate(piece.mask.sum(1).tolist()):
                expected = whole[row, done[row] : done[row] + count]
                done[row] += count
                off = (piece.x[row, :count] - expected).abs().amax().item() if count else 0.0
                if not off <= CLOSE:
                    message = f"x of a word is off by {off:.2g} from that of `forward` over the whole text"
                    raise FaultError(f"{message}, in pieces from {size} words on", _ENCODER)


def _read(bench: Bench, docs: list[Doc], size: int) -> Iterator[Piece]:
    """What the stages before the head return, piece by piece."""
    pipeline = bench.pipeline(2, NAN).eval()
    encoder = list(pipeline.encoder)
    embedding = [] if has_member(encoder[0], "embed") else list(pipeline.embedding)
    entries = stage_entries(encoder)
    past = {entry.input: torch.from_numpy(entry.zeros(1, 0)) for entry in entries}
    for some in pieces_of(docs, size):
        names = tensors(bench.artifacts.featurizer.collate(some)) | past
        piece = read_piece(embedding, encoder, names | {PAST + HEAD: torch.zeros(1, 0, 1, 1)})
        yield piece
        past = next_inputs(entries, piece.cache)


@torch.no_grad()
def _decides_in_pieces(bench: Bench) -> None:
    docs = bench.docs(LENGTHS)
    pipeline, kind = bench.pipeline(2).eval(), bench.answer
    head, names = pipeline.head, pipeline(tensors(bench.artifacts.featurizer.collate(docs)))
    whole = kind.answers(docs, {name: tensor.numpy() for name, tensor in call(head.decide, names).items()})
    for size in SIZES:
        for row, (doc, expected) in enumerate(zip(docs, whole, strict=True)):
            answer = _decided(bench, doc, size, head, names["x"][row])
            if not same_answer(answer, expected, CLOSE):
                message = f"in pieces of {size} words it answers {answer}, to the whole text {expected}"
                raise FaultError(message, _HEAD)


def _decided(bench: Bench, doc: Doc, size: int, head: torch.nn.Module, x: Tensor) -> Answer:
    """The answer to a text in pieces with an empty one before each, of x (T, D)."""
    kind, done = bench.answer, 0
    reader, parts = kind.piece_reader(), list[Answer]()
    state = torch.zeros(1, *member(head, "state_shape"))
    for (piece,) in pieces_of([doc], size):
        n = len(piece)
        for count in (0, n):
            mask = torch.arange(n)[None] < count
            rows = torch.where(mask[..., None], x[None, done : done + n], 0.0)
            decision = dict(member(head, "decide_piece")(rows, mask, state))
            state = decision.pop("state")
        done += n
        arrays: dict[str, np.ndarray] = {name: tensor.numpy() for name, tensor in decision.items()}
        parts += [reader.read(piece, arrays, kind.answers([piece], arrays)[0])]
    last = reader.finish()
    return [part for some in parts for part in some] + last if kind.tags_words else last
