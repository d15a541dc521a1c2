"""Which words are hidden of a text, and how tokens fill its gaps again: of words, characters and pieces."""

from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from seqpipe.answers.fill_mask import FillMask
from seqpipe.answers.metrics.text import FillingCounter
from seqpipe.answers.registry import head_answer_from, task_of
from seqpipe.config.signature import construct
from seqpipe.errors import DataError
from seqpipe.features.sources import TextSource
from seqpipe.features.splitting import splits_words
from seqpipe.features.vocabulary import MASK
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.chars import Chars
from seqpipe_plugins.tokenizers.unigram import Unigram
from seqpipe_plugins.tokenizers.wordpiece import WordPiece
from seqpipe_plugins.tokenizers.words import Words

TEXTS = ["The old walker was walking, (slowly) home.", "Walkers walk slowly home; talkers were talking."] * 3
TOKENIZERS: dict[str, Any] = {
    "words": Words(lowercase=True),
    "chars": Chars(),
    "wordpiece": construct(WordPiece, max_size=60),
    "bpe": construct(BPE, max_size=60),
    "bytes": construct(BPE, byte_level=True, max_size=290),
    "unigram": construct(Unigram, max_size=60),
}


def with_gaps(name: str) -> Tokenizer:
    tokenizer = TOKENIZERS[name].train(TEXTS)
    blank = splits_words(tokenizer)
    tokenizer.add_special_tokens([AddedToken(MASK, lstrip=blank, normalized=False, special=True)])
    return tokenizer


def filled(name: str, share: float = 0.3, fields: tuple[str, ...] = ("text",)) -> FillMask:
    return FillMask(with_gaps(name), token=MASK, share=share, fields=fields)


def answered(kind: FillMask, record: dict[str, Any], right: list[int]) -> Any:
    """The answer where the gaps are filled with these ids, from left to right."""
    (doc,) = TextSource(kind.tokenizer, {}, kind.fields).docs([record])
    gap, given = kind.tokenizer.token_to_id(MASK), iter(right)
    ids = [next(given) if i == gap else i for i in doc.ids]
    assert next(given, None) is None
    return kind.answers([doc], {"tokens": np.array([[ids]]), "scores": np.log([[0.25]])})[0]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("share", [0.01, 0.3, 0.99])
def test_a_text_whose_words_were_hidden_and_filled_again_is_the_text(name: str, share: float) -> None:
    kind = filled(name, share)
    for text in TEXTS[:2]:
        hidden, right = task_of(kind).question({"text": text})["text"], task_of(kind)._mask({"text": text}, "text")[1]
        assert hidden.count(MASK) == len(right) > 0
        answer = answered(kind, {"text": hidden}, right)
        written = answer["generated_text"]
        assert written == text or (name == "words" and written.lower() == text.lower())
        assert answer["words"] == task_of(kind).predicted(answer) == task_of(kind).gold({"text": text})
        assert answer["score"] == 0.25


def test_all_pieces_of_a_word_are_hidden_or_none() -> None:
    kind = filled("wordpiece", 0.5)
    left = task_of(kind).question({"text": TEXTS[0]})["text"].replace(MASK, " ")
    words = TextSource(kind.tokenizer, {}).docs([{"text": TEXTS[0]}])[0]
    assert {*left.replace("(", " ").replace(")", " ").replace(",", " ").replace(".", " ").split()} <= {
        TEXTS[0][a:b] for a, b in words.word_offsets
    }


@pytest.mark.parametrize(
    ("name", "text", "token", "written"),
    [
        ("words", "a [MASK] walk", "old", "a old walk"),
        ("words", "a  [MASK][MASK]  .", "old", "a  oldold  ."),
        ("wordpiece", "The [MASK] was", "##er", "The er was"),
        ("wordpiece", "The [MASK] was", "w", "The w was"),
        ("wordpiece", "([MASK])", "w", "(w)"),
        ("wordpiece", "[MASK] was", "##er", "##er was"),
        ("chars", "w[MASK]lk", "a", "walk"),
        ("bytes", "was [MASK].", "\u0120w", "was w."),
        ("bytes", "was [MASK].", "w", "was w."),
    ],
)
def test_a_piece_says_whether_it_goes_on_with_the_word_before(name: str, text: str, token: str, written: str) -> None:
    kind = filled(name)
    number = kind.tokenizer.token_to_id(token)
    assert number is not None
    answer = answered(kind, {"text": text}, [number] * text.count(MASK))
    assert answer["generated_text"] == written


def test_what_is_hidden_hangs_on_the_text_alone() -> None:
    kind = filled("words")
    one = task_of(kind).question({"text": TEXTS[0], "where": "a:1", "words": ["other"]})
    assert one == {"text": task_of(kind).question({"text": TEXTS[0]})["text"], "where": "a:1", "words": None}
    assert task_of(kind).question({"words": TEXTS[0].split()})["text"] == one["text"]
    assert task_of(kind).question({"text": ""}) == {"text": "", "words": None}
    with pytest.raises(DataError, match="no text in the field 'text'; it has: words, label"):
        task_of(kind).question({"words": None, "label": "a"})


def test_of_a_pair_both_texts_have_gaps() -> None:
    kind = filled("words", fields=("text", "more"))
    record = {"text": TEXTS[0], "more": TEXTS[1]}
    question = task_of(kind).question(record)
    right = [i for field in record for i in task_of(kind)._mask(record, field)[1]]
    answer = answered(kind, question, right)
    assert answer["generated_text"].lower() == f"{TEXTS[0]}\n{TEXTS[1]}".lower()
    assert answer["words"] == task_of(kind).gold(record)


def test_fillings_that_do_not_exist_are_left_out() -> None:
    kind = filled("words")
    (doc,) = TextSource(kind.tokenizer, {}).docs([{"text": "walk"}])
    decision = {"tokens": np.array([[doc.ids] * 3]), "scores": np.array([[0.0, -1e9, -1e9]])}
    nothing = {"generated_text": "walk", "score": 1.0, "words": []}
    assert kind.answers([doc], decision) == [[nothing]]
    assert kind.empty(True) == [{**nothing, "generated_text": ""}]


def test_a_bundle_describes_it_by_data_alone() -> None:
    kind = filled("words", 0.2)
    again = head_answer_from(kind.manifest(), kind.tokenizer)
    assert isinstance(again, FillMask)
    assert (
        again.manifest()
        == kind.manifest()
        == {
            "kind": "fill-mask",
            "target": None,
            "token": MASK,
            "share": 0.2,
            "fields": ["text"],
        }
    )


def test_its_scores_count_hidden_words_and_whole_texts() -> None:
    counter = FillingCounter()
    counter.add(["a", "b"], ["a", "c"])
    counter.add(["d"], ["d"])
    counter.add(["e", "f"], ["f"])
    assert counter.result() == {"masked_accuracy": 2 / 5, "exact_match": 1 / 3}
