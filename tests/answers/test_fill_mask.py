"""Which words are hidden of a text, and how tokens fill its gaps again: of words, characters and pieces."""

import re
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken

from seqpipe.answers.fill_mask import FillMask
from seqpipe.answers.metrics.numbers import PlaceCounter
from seqpipe.answers.registry import task_of
from seqpipe.config.signature import construct
from seqpipe.errors import DataError
from seqpipe.features.sources import TextSource
from seqpipe.features.splitting import splits_words
from seqpipe.features.vocabulary import MASK
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.chars import CharsTokenizer
from seqpipe_plugins.tokenizers.unigram import Unigram
from seqpipe_plugins.tokenizers.wordpiece import WordPiece
from seqpipe_plugins.tokenizers.words import WordsTokenizer

TEXTS = ["The old walker was walking, (slowly) home.", "Walkers walk slowly home; talkers were talking."] * 3
TOKENIZERS: dict[str, Any] = {
    "words": construct(WordsTokenizer, lowercase=True),
    "chars": CharsTokenizer(),
    "wordpiece": construct(WordPiece, max_size=60),
    "bpe": construct(BPE, max_size=60),
    "bytes": construct(BPE, byte_level=True, max_size=290),
    "unigram": construct(Unigram, max_size=60),
}


def filled(name: str, share: float = 0.3, fields: tuple[str, ...] = ("text",)) -> FillMask:
    tokenizer = TOKENIZERS[name].train(TEXTS)
    blank = splits_words(tokenizer)
    tokenizer.add_special_tokens([AddedToken(MASK, lstrip=blank, normalized=False, special=True)])
    return FillMask(tokenizer, token=MASK, share=share, fields=fields)


def answered(kind: FillMask, record: dict[str, Any], right: list[int]) -> Any:
    """The answer where the gaps are filled with these ids, from left to right."""
    (doc,) = TextSource(kind.tokenizer, {}, kind.fields).docs([record])
    ids, gap = np.array(doc.ids), kind.tokenizer.token_to_id(MASK)
    ids[ids == gap] = right
    return kind.answers([doc], {"tokens": ids[None, None], "scores": np.log([[0.25]])})[0]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("share", [0.01, 0.3, 0.99])
def test_a_text_whose_words_were_hidden_and_filled_again_is_the_text(name: str, share: float) -> None:
    kind = filled(name, share)
    task = task_of(kind)
    for text in TEXTS[:2]:
        hidden, right = task.question({"text": text})["text"], task._mask({"text": text}, "text")[1]
        assert hidden.count(MASK) == len(right) > 0
        answer = answered(kind, {"text": hidden}, right)
        written = answer["generated_text"]
        assert written == text or (name == "words" and written.lower() == text.lower())
        assert answer["words"] == task.predicted(answer) == task.gold({"text": text})
        assert answer["score"] == 0.25


def test_all_pieces_of_a_word_are_hidden_or_none() -> None:
    kind = filled("wordpiece", 0.5)
    left = task_of(kind).question({"text": TEXTS[0]})["text"].replace(MASK, " ")
    (doc,) = TextSource(kind.tokenizer, {}).docs([{"text": TEXTS[0]}])
    assert {*re.findall(r"\w+", left)} <= {TEXTS[0][a:b] for a, b in doc.word_offsets}


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
def test_a_piece_continues_the_word_before_or_begins_one(name: str, text: str, token: str, written: str) -> None:
    kind = filled(name)
    number = kind.tokenizer.token_to_id(token)
    assert number is not None
    assert answered(kind, {"text": text}, [number] * text.count(MASK))["generated_text"] == written


def test_the_hidden_words_depend_on_the_text_alone() -> None:
    question = task_of(filled("words")).question
    hidden = question({"text": TEXTS[0]})["text"]
    record = {"text": TEXTS[0], "where": "a:1", "words": ["x"]}
    assert question(record) == {"text": hidden, "where": "a:1", "words": None}
    assert question({"words": TEXTS[0].split()})["text"] == hidden
    assert question({"text": ""}) == {"text": "", "words": None}
    with pytest.raises(DataError, match="no text in the field 'text'; it has: words, label"):
        question({"words": None, "label": "a"})


def test_both_texts_of_a_pair_have_gaps() -> None:
    kind, record = filled("words", fields=("text", "more")), {"text": TEXTS[0], "more": TEXTS[1]}
    task = task_of(kind)
    right = [i for field in record for i in task._mask(record, field)[1]]
    answer = answered(kind, task.question(record), right)
    assert answer["generated_text"].lower() == f"{TEXTS[0]}\n{TEXTS[1]}".lower()
    assert answer["words"] == task.gold(record)


def test_fillings_that_do_not_exist_are_left_out() -> None:
    kind = filled("words")
    (doc,) = TextSource(kind.tokenizer, {}).docs([{"text": "walk"}])
    decision = {"tokens": np.array([[doc.ids] * 3]), "scores": np.array([[0.0, -1e9, -1e9]])}
    nothing = {"generated_text": "walk", "score": 1.0, "words": [], "log_score": 0.0}
    assert kind.answers([doc], decision) == [[nothing]]
    assert kind.empty(True) == [{**nothing, "generated_text": ""}]


def test_its_scores_count_hidden_words_and_whole_texts() -> None:
    counter = PlaceCounter(("masked_accuracy", "exact_match"))
    for gold, predicted in ((["a", "b"], ["a", "c"]), (["d"], ["d"]), (["e", "f"], ["f"])):
        counter.add(gold, predicted)
    assert counter.result() == {"masked_accuracy": 2 / 5, "exact_match": 1 / 3}
