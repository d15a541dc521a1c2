"""When a span of a text in pieces is known, and the product of probabilities that is its score."""

from typing import Any

import numpy as np
import pytest

from seqpipe.answers.tagging import SpanReader
from seqpipe.features.document import Arrays, Doc

LABELS = ("O", "B-PER", "I-PER", "E-PER", "S-PER")


def piece(words: list[str], tags: list[str], p: list[float], stops: float) -> tuple[Doc, Arrays, Any]:
    """Words behind a blank each, whose tags have these probabilities; `stops` that the piece ends an open span."""
    text, offsets = "", []
    for word in words:
        offsets.append((len(text) + 1, len(text) + 1 + len(word)))
        text += f" {word}"
    log_p = np.log(p)
    so_far = log_p.cumsum()
    arrays = {"tags": [LABELS.index(tag) for tag in tags], "opens": log_p - so_far, "closes": so_far}
    decision = {name: np.array([values]) for name, values in arrays.items()} | {"stops": np.log([stops])}
    return Doc(text, words, offsets, [1] * len(words)), decision, None


def test_a_span_is_known_with_its_last_tag_or_with_the_word_that_does_not_continue_it() -> None:
    reader = SpanReader(LABELS)
    assert reader.read(*piece(["Ada"], ["S-PER"], [0.5], 1.0)) == [
        {"entity_group": "PER", "score": 0.5, "word": "Ada", "start": 1, "end": 4}
    ]
    assert reader.read(*piece(["Dee"], ["B-PER"], [0.5], 1.0)) == []
    assert reader.read(*piece(["Dee", "Fox"], ["I-PER", "E-PER"], [0.5, 0.8], 0.1)) == [
        {"entity_group": "PER", "score": pytest.approx(0.2), "word": "Dee Dee Fox", "start": 5, "end": 16}
    ]
    assert reader.read(*piece(["Bob"], ["B-PER"], [0.9], 1.0)) == []
    assert reader.tags == ["B-PER"]
    (bob,) = reader.read(*piece(["left"], ["O"], [0.7], 0.6))
    assert (bob["word"], bob["start"], bob["score"]) == ("Bob", 17, pytest.approx(0.54))
    assert reader.read(*piece(["Cho"], ["B-PER"], [0.4], 1.0)) == []
    (cho,) = reader.finish()
    assert (cho["word"], cho["score"]) == ("Cho", pytest.approx(0.4))
    assert reader.finish() == []
