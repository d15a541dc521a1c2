"""A row of which nothing was read is one without a cache, whatever stands in its tensors."""

import numpy as np
import torch
from torch import Tensor

from seqpipe.answers.text import PAST, PRESENT
from seqpipe.nn.incremental import HEAD_ENTRY, LENGTH_ENTRY, Chunk, read_chunk, stage_entries
from seqpipe.testing.toys import DIM, ToyCausal, ToyEmbedding


class BeginsWithOnes(ToyCausal):
    """Its sum begins with 1."""

    def import_cache(self, cache: Tensor) -> tuple[Tensor, ...]:
        return super().import_cache(cache) if cache.shape[1] else (torch.ones(len(cache), self.dim),)


def embedding() -> ToyEmbedding:
    torch.manual_seed(0)
    return ToyEmbedding(list("abcdefghij"))


def read(lengths: list[int], past: dict[str, Tensor] | None = None) -> Chunk:
    """Rows of so many tokens; each has as its token the number of the row, and one."""
    encoder = BeginsWithOnes(DIM)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    ids = torch.arange(1, len(lengths) + 1)[:, None] * mask
    fresh = {
        entry.input: torch.from_numpy(np.zeros(entry.shape(1, 0), entry.dtype)) for entry in stage_entries([encoder])
    }
    names = {"ids": ids, "mask": mask, PAST + HEAD_ENTRY: torch.ones(len(lengths), 1, 1, 2), **fresh, **(past or {})}
    return read_chunk([embedding()], [encoder], names)


def test_a_row_that_begins_later_starts_as_one_without_a_cache() -> None:
    expected = read([2, 2]).x[1]
    first = read([2, 0])
    assert first.cache[PRESENT + LENGTH_ENTRY].tolist() == [[2], [0]]
    again = read(
        [1, 2], {PAST + LENGTH_ENTRY: first.cache[PRESENT + LENGTH_ENTRY], f"{PAST}0": first.cache[f"{PRESENT}0"]}
    )
    torch.testing.assert_close(again.x[1], expected)
    zeros = torch.zeros(2, 1, 1, DIM)  # as a caller joins a new text to those that it has
    joined = read([1, 2], {PAST + LENGTH_ENTRY: torch.tensor([[2], [0]]), f"{PAST}0": zeros})
    torch.testing.assert_close(joined.x[1], expected)
    assert not torch.allclose(joined.x[0, 0], read([1]).x[0, 0])  # whose zeros were read


def test_the_state_of_a_head_is_0_where_nothing_was_read() -> None:
    chunk = read([1, 1], {PAST + LENGTH_ENTRY: torch.tensor([[3], [0]]), f"{PAST}0": torch.zeros(2, 1, 1, DIM)})
    assert chunk.state.tolist() == [[[1.0, 1.0]], [[0.0, 0.0]]]
    assert chunk.cache[PRESENT + LENGTH_ENTRY].tolist() == [[4], [1]]
