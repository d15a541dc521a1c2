"""Checks of incremental decoding and of answers in chunks: each must be those of the whole text."""

from __future__ import annotations

import contextlib

import numpy as np
import torch
from torch import Tensor

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.text import PAST, PRESENT
from seqpipe.config.contract import has_member, member
from seqpipe.config.signature import call
from seqpipe.export.graph import tensors_of
from seqpipe.export.parity.decisions import SCORE_ATOL
from seqpipe.export.parity.gate import ragged_chunks
from seqpipe.features.document import Doc
from seqpipe.nn.incremental import HEAD_ENTRY, IncrementalStages, cache_entries, read_chunk, stage_entries
from seqpipe.runtime.manifest import next_inputs
from seqpipe.runtime.opened import same_answer
from seqpipe.testing.bench import SHAPES, Bench
from seqpipe.testing.report import Check, FaultError

# Check that incremental decoding gives the same vectors as one run over the whole text.

CHUNKS = "a text in chunks is the text as a whole"
ROW_LENGTHS, PROMPT_LENGTHS = (9, 7, 5), (4, 2, 1)  # tokens of the rows of a ragged batch
NAN = float("nan")

_CHUNK_FIX = (
    "`prefill` and `step` must give a token, from the cache of the tokens before it, the vector that `forward` gives "
    "it in the whole text, and `import_cache(export_cache(…))` must restore the cache, "
    "which has a slot for each token with `cache_per_token` only: see `seqpipe.nn.incremental.IncrementalEncoder`"
)
_SLOTS_FIX = "set `cache_per_token = True` if, and only if, the cache has a slot for each token"


def incremental_checks(bench: Bench) -> list[Check]:
    """Return the check, for an encoder that is causal under these options."""
    if bench.subject.kind != "encoder" or not _applies(bench, "causal_fix"):
        return []
    return [Check(CHUNKS, lambda: _in_chunks(bench), _CHUNK_FIX, (SHAPES,))]


def _applies(bench: Bench, obstacle: str) -> bool:
    """Return whether the component has this member, and the member finds no obstacle in its options."""
    problem = member(bench.subject.cls, obstacle)
    return problem is not None and not problem(bench.subject.chosen)


@torch.no_grad()
def _in_chunks(bench: Bench) -> None:
    """Reads a prompt, then two tokens step by step, then two more from the exported cache."""
    network = bench.network(2, NAN).eval()
    names = tensors_of(bench.feeds(ROW_LENGTHS))
    ids, whole = names["ids"], network(dict(names))["x"]
    others = {name: tensor for name, tensor in names.items() if name not in ("ids", "mask")}
    embedding = [] if has_member(network.encoder[0], "embed") else [*network.embedding]
    rows, prompts = torch.arange(len(ids)), torch.tensor(PROMPT_LENGTHS)

    def same(what: str, x: Tensor, at: Tensor) -> None:
        off = (x - whole[rows, at]).abs().max().item()
        if not off <= SCORE_ATOL:
            raise FaultError(f"x of a token {what} differs by {off:.2g} from `forward` over the whole text")

    incremental = IncrementalStages(embedding, [*network.encoder], others, adds_bos=False)
    read = ids[:, : max(PROMPT_LENGTHS)], torch.arange(max(PROMPT_LENGTHS)) < prompts[:, None]
    same("at the end of the prompt", incremental.prefill(*read, torch.tensor(False)).last_x, prompts - 1)
    prompt = incremental.prefill(*read)
    for t in range(max(PROMPT_LENGTHS)):
        at = torch.minimum(torch.tensor(t), prompts - 1)
        same("of the prompt", prompt.x[rows, at], at)
    # Beam search reads the last token of the prompt in its first step.
    for first, prefix in ((0, prompt.prefix), (-1, prompt.before)):
        state = incremental.start(prefix)
        for t in range(first, 2):
            x, state = incremental.step(ids[rows, prompts + t], prefix, state)
            same("decoded step by step", x, prompts + t)
        prefix = incremental.extended(prefix, state)
        cache = incremental.export_cache(prefix, torch.zeros_like(prompts, dtype=torch.bool))
        for number, encoder in enumerate(network.encoder):
            slots = cache[f"{PRESENT}{number}"].shape[1]
            if (slots > 1) != member(encoder, "cache_per_token"):
                raise FaultError(f"its cache of several tokens has {slots} slot{'s' * (slots > 1)}", _SLOTS_FIX)
        past = next_inputs(cache_entries([*network.encoder]), cache)
        continued = IncrementalStages(embedding, [*network.encoder], others | past, adds_bos=False)
        after = continued.prefill(ids[rows, prompts + 2][:, None], torch.ones(len(ids), 1, dtype=torch.bool))
        same("after an imported cache", after.last_x, prompts + 2)
        x, _ = continued.step(ids[rows, prompts + 3], after.prefix, continued.start(after.prefix))
        same("decoded step by step after an imported cache", x, prompts + 3)


# Check that an encoder or a head gives a text in chunks the answers of the whole text.

STREAMED_ANSWERS = "answers in chunks are those of the whole text"
STREAMED_LENGTHS, CHUNK_SIZES = (9, 4, 1, 6), (1, 2, 3)  # words of a text of a ragged batch, and of a chunk

_ENCODER_FIX = (
    "`prefill` must give a token, from the cache of the tokens before it, the vector that `forward` gives it in the "
    "whole text; a row without tokens keeps its cache, and a row before its first token starts without one. See "
    "`seqpipe.nn.incremental.read_chunk`; an encoder with `tokenwise` must compute each word of a chunk by itself"
)
_HEAD_FIX = (
    "`decide_chunk` must decide, from the `state` that it returned for the tokens before, what `decide` decides in the "
    "whole text; a row without tokens keeps its state, which is 0 before the first token"
)


def streaming_checks(bench: Bench) -> list[Check]:
    """Return the check, for an encoder or a head that answers a text in chunks under these options."""
    kind = bench.subject.kind
    with contextlib.suppress(FaultError):  # another check reports options that do not fit
        if kind == "head" and _applies(bench, "streaming_problem"):
            return [Check(STREAMED_ANSWERS, lambda: _decides_in_chunks(bench), _HEAD_FIX, (SHAPES,))]
        if kind == "encoder" and (_applies(bench, "causal_fix") or member(bench.subject.cls, "tokenwise")):
            return [Check(STREAMED_ANSWERS, lambda: _reads_in_chunks(bench), _ENCODER_FIX, (SHAPES,))]
    return []


@torch.no_grad()
def _reads_in_chunks(bench: Bench) -> None:
    docs, collate = bench.docs(STREAMED_LENGTHS), bench.artifacts.featurizer.collate
    network = bench.network(2, NAN).eval()
    encoder = [*network.encoder]
    embedding = [] if has_member(encoder[0], "embed") else [*network.embedding]
    entries = stage_entries(encoder)
    whole: Tensor = network(tensors_of(collate(docs)))["x"]  # (B, N, D)
    for size in CHUNK_SIZES:
        done = [0] * len(docs)
        past = {entry.input: torch.from_numpy(np.zeros(entry.shape(1, 0), entry.dtype)) for entry in entries}
        for chunk_docs in ragged_chunks(docs, size):
            names = tensors_of(collate(chunk_docs)) | past | {PAST + HEAD_ENTRY: torch.zeros(1, 0, 1, 1)}
            chunk = read_chunk(embedding, encoder, names)
            past = next_inputs(entries, chunk.cache)
            for row, count in enumerate(chunk.mask.sum(1).tolist()):
                expected = whole[row, done[row] : done[row] + count]
                done[row] += count
                off = (chunk.x[row, :count] - expected).abs().amax().item() if count else 0.0
                if not off <= SCORE_ATOL:
                    raise FaultError(
                        f"x of a word differs by {off:.2g} from `forward`, in chunks of {size} words or more"
                    )


@torch.no_grad()
def _decides_in_chunks(bench: Bench) -> None:
    docs = bench.docs(STREAMED_LENGTHS)
    network, kind = bench.network(2).eval(), bench.task.kind
    head, names = network.head, network(tensors_of(bench.artifacts.featurizer.collate(docs)))
    whole = kind.answers(docs, {name: tensor.numpy() for name, tensor in call(head.decide, names).items()})
    for size in CHUNK_SIZES:
        for row, (doc, expected) in enumerate(zip(docs, whole, strict=True)):
            answer = _decided(bench, doc, size, head, names["x"][row])
            if not same_answer(answer, expected, SCORE_ATOL):
                raise FaultError(f"in chunks of {size} words it answers {answer}, for the whole text {expected}")


def _decided(bench: Bench, doc: Doc, size: int, head: torch.nn.Module, x: Tensor) -> Answer:
    """Return the answer from x (T, D) to a text in chunks, with an empty chunk before each."""
    kind, done = bench.task.kind, 0
    reader, parts = kind.chunk_reader(), list[Answer]()
    state = torch.zeros(1, *member(head, "state_shape"))
    for (chunk,) in ragged_chunks([doc], size):
        n = len(chunk)
        for count in (0, n):
            mask = torch.arange(n)[None] < count
            rows = torch.where(mask[..., None], x[None, done : done + n], 0.0)
            decision = dict(member(head, "decide_chunk")(rows, mask, state))
            state = decision.pop("state")
        done += n
        arrays: dict[str, np.ndarray] = {name: tensor.numpy() for name, tensor in decision.items()}
        parts += [reader.read(chunk, arrays, kind.answers([chunk], arrays)[0])]
    last = reader.finish()
    return [part for chunk_answer in parts for part in chunk_answer] + last if kind.tags_words else last
