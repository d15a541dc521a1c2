"""Properties of every feature kind: its public name, its shape, its manifest, its bounds."""

import numpy as np
import pytest

from seqpipe import plugin
from seqpipe.errors import BundleError
from seqpipe.features.document import Doc
from seqpipe.features.kinds.base import FeatureKind
from seqpipe.features.kinds.registry import feature_from, feature_kinds, pair_features
from seqpipe.plugin import Chars, Column, Copy, Image, Matrix, Mel, Ngrams, Pieces, Segments, Sentences
from seqpipe_plugins.tokenizers.words import WordsTokenizer

TARGET = WordsTokenizer().train(["a b"])
DOCS = [
    Doc("a bc", ["a", "bc"], [(0, 1), (2, 4)], [4, 1], rows=np.ones((2, 3)), columns={"mood": "bad"}),
    Doc("a", ["a"], [(0, 1)], [4], rows=np.ones((1, 3)), columns={"mood": "good"}),
]
FEATURES = [Chars(), Column("mood"), Copy(), Image(2, 3), Matrix(), Mel(bands=3), Ngrams(), Pieces(), Segments()]
FEATURES += [Sentences(), Sentences("lines")]
MEL = Mel(means=(0.0,), deviations=(1.0,), bands=1).manifest()
every = pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.kind)


def fitted(feature: FeatureKind) -> FeatureKind:
    return feature.fit(DOCS).with_target_tokenizer(False, "target_tokenizer.json", TARGET)


def test_the_list_of_this_file_is_that_of_the_registry() -> None:
    assert [type(feature) for feature in FEATURES[:-1]] == [*feature_kinds().values()]


@every
def test_a_kind_has_its_public_name_and_its_array(feature: FeatureKind) -> None:
    cls = type(feature)
    assert feature_kinds()[cls.kind] is cls
    assert getattr(plugin, cls.__name__) is cls
    array = fitted(feature).array(DOCS, 2)
    assert array.dtype == cls.dtype
    assert len(cls.shape.split(",")) == array.ndim == len(feature.axes)
    axes = zip(fitted(feature).axes, array.shape, strict=True)
    assert all(axis == size for axis, size in axes if isinstance(axis, int))


@every
def test_a_fitted_feature_survives_its_manifest_and_is_within_bounds(feature: FeatureKind) -> None:
    again = feature_from(fitted(feature).manifest(), {"target_tokenizer.json": TARGET})
    assert again == fitted(feature)
    assert again.out_of_bounds() == ""
    assert np.array_equal(again.array(DOCS, 2), fitted(feature).array(DOCS, 2))


@every
def test_a_feature_is_of_a_text_or_of_numbers_and_names_the_cure(feature: FeatureKind) -> None:
    assert feature.mismatch(not feature.reads_numbers, "") == ""
    message = feature.mismatch(feature.reads_numbers, "prices")
    assert ("inputs: {prices: " if feature.reads_numbers else "add one, or use linear") in message


@pytest.mark.parametrize("feature", [feature for feature in FEATURES if not feature.reads_numbers])
def test_a_feature_of_a_text_refuses_numbers(feature: FeatureKind) -> None:
    with pytest.raises(TypeError, match=f"feature kind '{feature.kind}' reads no numbers, but list was passed: f:1"):
        feature.rows([[1.0]], "f:1")


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ({"kind": "chars", "longest": 0, "alphabet": ""}, "chars.longest: 0 is not between 1 and 10,000"),
        ({"kind": "chars", "longest": 10_001, "alphabet": ""}, "10001 is not between"),
        (Ngrams(11).manifest(), "ngrams: words 11 are above 10"),
        (Ngrams(chars=(1, 21)).manifest(), "chars (1, 21) above 20"),
        (Ngrams().manifest() | {"normalize": "lower"}, "ngrams.normalize: 'lower' is not one of NFC, NFD, NFKC, NFKD"),
        ({"kind": "matrix", "means": [0.0], "deviations": [0.0]}, "deviations that are not above 0"),
        ({"kind": "matrix", "means": [float("nan")], "deviations": [1.0]}, "means that are not finite"),
        (MEL | {"fft": 401}, "the fft must be even, at least the window"),
        (MEL | {"highest": 8001}, "which must be from 0 to half the rate"),
        (MEL | {"lowest": float("nan")}, "mel: lowest nan"),
        (MEL | {"means": [float("nan")]}, "mel: means that are not finite"),
    ],
)
def test_values_that_no_fitted_feature_has_are_out_of_bounds(manifest: dict[str, object], words: str) -> None:
    assert words in feature_from(manifest).out_of_bounds()


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"kind": "pixels"}, "unknown feature kind 'pixels'; update seqpipe"),
        ({"kind": "sentences", "split": "verse"}, "unknown feature kind 'sentences' with split 'verse'; update"),
        ({"kind": "matrix", "means": [0.0], "deviations": [1.0, 1.0]}, "'matrix' with 1 means and 2 deviations"),
        (MEL | {"bands": 2}, "unknown feature kind 'mel' without whole numbers, or of other bands"),
        *(
            (Ngrams().manifest() | {key: text}, "feature kind 'ngrams' with damaged hashes or counts")
            for key in ("hashes", "counts")
            for text in ("AAAAA", "AAAA====", "AAA", "é", "AAAAAAA=")
        ),
    ],
)
def test_a_manifest_of_no_feature_is_refused(manifest: dict[str, object], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        feature_from(manifest)


def test_an_example_has_values_that_a_column_knows() -> None:
    column = Column("mood").fit(DOCS)
    assert column.example_fields(lambda values: values[1]) == {"mood": "good"}
    assert Column("mood", ("bad",)).unfitted().value("new") == "new"


def test_pairs_have_their_features_without_a_declaration() -> None:
    assert pair_features() == {"segments": Segments()}
