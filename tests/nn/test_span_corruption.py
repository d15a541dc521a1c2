"""Hidden spans: what is read and what is written make the text again, and how much is hidden."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from seqpipe.nn.corruption import BatchRandom, Hidden, remove_spans

MARKS = torch.tensor([40, 42, 41, 43, 44])
LENGTHS = (1, 2, 3, 9, 30, 100)
EOS = 3


def hidden(lengths: tuple[int, ...] = LENGTHS, *, training: bool = True, share: float = 0.15) -> tuple[Tensor, Hidden]:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    drawn = torch.stack([torch.randperm(900)[: mask.shape[1]] for _ in lengths])
    ids = torch.where(mask, 100 + drawn, 0)
    return ids, remove_spans(ids, mask, MARKS, share, 3.0, BatchRandom(training, ids.device))


def put_back(read: list[int], written: list[int]) -> list[int]:
    """The text, each mark that was read replaced by what is written behind it."""
    marks = MARKS.tolist()
    assert written[-1] == EOS
    spans: dict[int, list[int]] = {}
    for token in written[:-1]:
        if token in marks:
            assert token not in spans
            spans[token] = []
            last = token
        else:
            spans[last].append(token)
    assert [*spans] == marks[: len(spans)]
    assert spans.pop(last) == []  # the one that closes it
    assert [token for token in read if token in marks] == [*spans]
    assert all(spans.values())
    return [one for token in read for one in (spans[token] if token in marks else [token])]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_read_and_what_is_written_make_the_text(seed: int) -> None:
    torch.manual_seed(seed)
    ids, made = hidden()
    for row, length in enumerate(LENGTHS):
        read = made.ids[row][made.mask[row]].tolist()
        written = made.target_ids[row][made.target_mask[row]].tolist()
        assert put_back(read, written) == ids[row, :length].tolist()
        assert all(not {one, other} <= {*MARKS.tolist()} for one, other in pairwise(read))
    assert not made.ids[~made.mask].any()
    assert not made.target_ids[~made.target_mask].any()


def test_a_share_of_the_tokens_is_hidden_in_spans_of_a_mean_length() -> None:
    torch.manual_seed(0)
    count, tokens, places = 0, 0, torch.zeros(60)
    for _ in range(300):
        ids, made = hidden((60,))
        gone = ~torch.isin(ids[0], made.ids[0])
        count, tokens, places = count + int(torch.isin(made.ids, MARKS).sum()), tokens + int(gone.sum()), places + gone
    assert tokens / (300 * 60) == pytest.approx(0.15, abs=0.01)
    assert tokens / count == pytest.approx(3.0, abs=0.1)
    assert (places / 300 - 0.15).abs().max() < 0.11  # every place, the first and the last too


def test_long_texts_have_no_more_spans_than_there_are_marks() -> None:
    _, made = hidden((400, 7), share=0.5)
    assert torch.isin(made.ids[0], MARKS).sum() == 4
    assert torch.isin(made.target_ids[0], MARKS).sum() == 5


def test_it_is_the_same_in_evaluation_and_another_in_training() -> None:
    torch.manual_seed(0)
    ids = torch.randint(100, 1000, (3, 40))
    mask = torch.ones_like(ids, dtype=torch.bool)
    for training in (False, True):
        one, other = (remove_spans(ids, mask, MARKS, 0.15, 3.0, BatchRandom(training, ids.device)) for _ in range(2))
        assert torch.equal(one.target_ids, other.target_ids) is not training
