import torch
from acme_suffix.embedding import Suffix
from torch import Tensor

from seqpipe.plugin import check_embedding


def spelled(*words: str) -> Tensor:
    """One text of these words: a is 2, b is 3, and so on."""
    longest = max(map(len, words))
    return torch.tensor([[[ord(c) - 95 for c in word] + [0] * (longest - len(word)) for word in words]])


def test_it_keeps_the_contract_of_embeddings_also_with_endings_longer_than_every_word() -> None:
    check_embedding(Suffix, dim=8)
    check_embedding(Suffix, n=10, dim=4)


def test_a_word_is_the_sum_of_its_parts() -> None:
    suffix = Suffix({"chars": 28}, n=2, dim=4)
    ending, beginning, anywhere = (table.weight for table in (suffix.ending, suffix.beginning, suffix.anywhere))
    x = suffix(spelled("cab", "d"))[0]
    a, b, c, d = 2, 3, 4, 5
    assert torch.allclose(x[0], ending[b] + ending[28 + a] + beginning[c] + anywhere[[c, a, b]].amax(0))
    assert torch.allclose(x[1], ending[d] + ending[28] + beginning[d] + anywhere[d])  # nothing stands before d
