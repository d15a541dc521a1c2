"""N-grams are those of words in the tokenizer's Unicode normalization form."""

import unicodedata
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from seqpipe.features.document import Doc
from seqpipe.features.kinds.registry import feature_from
from seqpipe.plugin import Ngrams
from seqpipe_plugins.tokenizers.words import Words

WORDS = ["한국어", "café", "한국"]


def doc(form: Any) -> Doc:
    words = [unicodedata.normalize(form, word) for word in WORDS]
    return Doc(" ".join(words), words, [(0, 1)] * len(words), [4] * len(words))


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_composed_and_decomposed_words_have_the_same_ngrams(form: Any) -> None:
    tokenizer = Words(normalize=form).train([" ".join(WORDS)])
    feature = Ngrams(words=2, chars=(2, 3)).with_tokenizer(tokenizer).fit([doc("NFD")])
    composed, decomposed = (feature.array([doc(written)], 3) for written in ("NFC", "NFD"))
    assert np.array_equal(composed, decomposed)
    assert (composed[..., :2] > 0).sum() == 5  # three words, and two pairs of them
    again = feature_from(feature.manifest())
    assert again == feature
    assert np.array_equal(again.array([doc("NFC")], 3), composed)
    unlike = replace(feature, normalize=None, _rows={})
    assert not np.array_equal(*(unlike.array([doc(written)], 3) for written in ("NFC", "NFD")))


def test_another_form_is_out_of_bounds() -> None:
    manifest = Ngrams().fit([doc("NFC")]).manifest() | {"normalize": "lower"}
    assert feature_from(manifest).out_of_bounds() == "ngrams.normalize: 'lower' is not one of NFC, NFD, NFKC, NFKD"
