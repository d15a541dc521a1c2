import pytest
import torch

from seqpipe.config.signature import construct
from seqpipe.features.vocabulary import Vocabulary
from seqpipe_plugins.embeddings.lookup import Lookup

WORDS = Vocabulary(["[PAD]", "[UNK]", "[BOS]", "[EOS]", "often", "once"], [0, 0, 0, 0, 7, 1])


def read_as(lookup: Lookup, word: int) -> dict[int, float]:
    """Counts of the ids by which a word in a long text is read in training."""
    lookup.train()
    with torch.no_grad():
        lookup.table.weight.copy_(torch.arange(6.0)[:, None].expand(-1, lookup.dim))
        read = lookup(torch.full((100, 100), word))["x"][..., 0]
    return {int(i): (read == i).float().mean().item() for i in read.unique()}


def test_padding_is_zero_and_vectors_start_within_their_bounds() -> None:
    lookup = Lookup(WORDS, {}, dim=12)
    assert not lookup(torch.zeros(2, 3, dtype=torch.int64))["x"].any()
    assert 0.3 < lookup.table.weight[1:].abs().max() <= (3 / 12) ** 0.5
    lookup(torch.tensor([[0, 4]]))["x"].sum().backward()
    assert not lookup.table.weight.grad[0].any()
    assert lookup.table.weight.grad[4].all()


def test_word_dropout_is_of_any_word_and_never_of_special_tokens() -> None:
    lookup = construct(Lookup, WORDS, {}, dim=2, word_dropout=0.3)
    for word in (4, 5):
        assert read_as(lookup, word)[1] == pytest.approx(0.3, abs=0.03)
    for special in (0, 2, 3):
        assert read_as(lookup, special) == {special: 1.0}


def test_rare_dropout_is_of_words_seen_once_and_of_none_in_a_vocabulary_without_counts() -> None:
    lookup = construct(Lookup, WORDS, {}, dim=2, rare_dropout=0.5)
    assert read_as(lookup, 5)[1] == pytest.approx(0.5, abs=0.03)
    assert read_as(lookup, 4) == {4: 1.0}
    assert read_as(construct(Lookup, list(WORDS), {}, dim=2, rare_dropout=0.9), 5) == {5: 1.0}


def test_without_training_nothing_is_dropped() -> None:
    lookup = construct(Lookup, WORDS, {}, dim=3, dropout=0.5, word_dropout=0.9, rare_dropout=0.9).eval()
    ids = torch.tensor([[4, 5, 1], [5, 0, 0]])
    assert torch.equal(lookup(ids)["x"], lookup.table.weight[ids])


def test_locked_dropout_drops_a_column_of_a_row_at_all_its_words() -> None:
    lookup = construct(Lookup, WORDS, {}, dim=50, locked_dropout=0.4)
    scale = lookup(torch.full((20, 6), 4))["x"] / lookup.table.weight[4]  # (B, T, D)
    assert torch.allclose(scale, scale[:, :1].expand(-1, 6, -1))
    assert (scale[:, 0] == 0).float().mean() == pytest.approx(0.4, abs=0.05)
    assert not torch.equal(scale[0], scale[1])
    assert torch.equal(lookup.eval()(torch.tensor([[4]]))["x"][0], lookup.table.weight[4:5])


def test_the_table_of_all_vectors_is_an_output() -> None:
    lookup = construct(Lookup, WORDS, {}, dim=3, dropout=0.5)
    assert lookup(torch.tensor([[4]]))["table"] is lookup.table.weight
