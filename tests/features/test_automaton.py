"""Automata over the pieces of any tokenizer accept what holds no forbidden text, and refuse what does."""

import random
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from seqpipe.answers.text import Text
from seqpipe.config.signature import construct
from seqpipe.features.automaton import TextAutomaton, WrittenBytes, text_automaton
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.chars import CharsTokenizer
from seqpipe_plugins.tokenizers.unigram import Unigram
from seqpipe_plugins.tokenizers.wordpiece import WordPiece
from seqpipe_plugins.tokenizers.words import WordsTokenizer

CORPUS = [
    "the theatre there, then their theme (and then some).",
    "été à Zürich: ñandú 👩\u200d💻 👍🏽 고양이가 잔다 می\u200cروم",
    "“Was it?” — 12 [of] {them} don't; can't",
] * 4
MAKERS: dict[str, Any] = {
    "bytes": construct(BPE, byte_level=True, max_size=300),
    "bpe": construct(BPE, max_size=200),
    "wordpiece": construct(WordPiece, max_size=200),
    "unigram": construct(Unigram, max_size=120),
    "chars": construct(CharsTokenizer),
    "words": construct(WordsTokenizer, pattern=r"\w+|[^\w\s]"),
    "words joined": construct(WordsTokenizer, pattern=r"\w+|[^\w\s]", detokenize=True),
}
FORBIDDEN = [["the"], ["the", "re, then"], ["é", "ñ"], [" "], ["(and", ") ."], [" th", "em"], ["t?"], ["\n"]]
FORBIDDEN += [["고양이가 잔", "\u200d"]]


def next_state(arcs: list[list[int]], state: int, piece: int) -> int:
    """The state after a piece, -1 where it is forbidden."""
    after = [to for begin, token, to in arcs if token == piece and begin in (-1, state)]
    return -1 if -1 in after else max(after, default=0)


@pytest.mark.parametrize("texts", FORBIDDEN, ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_no_text_that_is_accepted_holds_a_forbidden_one(name: str, texts: list[str]) -> None:
    tokenizer: Tokenizer = MAKERS[name].train(CORPUS)
    written = WrittenBytes(tokenizer)
    automaton = TextAutomaton(written, texts)
    arcs = automaton.inputs([0], [[]])[0].tolist()
    draw, refused = random.Random(0), 0
    for _ in range(120):
        ids: list[int] = []
        state = 0
        for _ in range(10):
            likely = [i for begin, i, _ in arcs[1:] if begin == state] or [i for _, i, _ in arcs[1:]]
            may = likely if likely and draw.random() < 0.8 else range(4, tokenizer.get_vocab_size())
            piece = draw.choice(may)
            to = next_state(arcs, state, piece)
            if to < 0:
                # The text does hold one, perhaps with what may stand behind it, or the blank at its beginning.
                whole = b"".join(written.pieces[i] for i in [*ids, piece])
                joined = whole.decode(errors="replace")
                glued = joined
                for mark in written.opening:
                    glued = glued.replace(mark.decode() + " ", mark.decode())
                assert any(text in joined or text in glued for text in texts)
                refused += 1
                continue
            ids, state = [*ids, piece], to
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            assert not any(text in decoded for text in texts)
            assert automaton.after(b"".join(written.pieces[i] for i in ids)) == state
    lines = [tokenizer.decode(tokenizer.encode(line).ids) for line in CORPUS]
    assert refused > 3 or not any(text in line for line in lines for text in texts)


def test_copied_words_have_arcs_behind_those_of_the_vocabulary() -> None:
    tokenizer = MAKERS["words"].train(CORPUS)
    automaton, V = text_automaton(WrittenBytes(tokenizer), ("bad", "[UNK]")), tokenizer.get_vocab_size()
    first, second = automaton.inputs([0, 0], [["good", "bad"], []]).tolist()
    assert [-1, V + 1, -1] in first
    assert [-1, V + 1, -1] not in second
    assert [-1, 1, -1] in first
    assert not [arc for arc in first if arc[1] == V]
    assert np.array(first).shape == np.array(second).shape


@pytest.mark.parametrize("name", MAKERS)
def test_the_pieces_that_contain_a_text_are_those_of_a_plain_search(name: str) -> None:
    kind = Text(MAKERS[name].train(CORPUS))
    texts = ["e", "th", "e", "ñ", "é", " ", "]", "\u200d", "👩", "a\0", "고양", "then", "zzz"]
    pieces, wanted = kind.written_bytes.pieces, [text.encode() for text in texts]
    plain = [i for i, piece in enumerate(pieces) if any(text in piece for text in wanted)]
    assert kind.pieces_with(texts) == plain
    assert 5 < len(plain) < len(pieces)
    assert kind.pieces_with(["zzz"]) == []


def test_a_prompt_says_in_which_state_a_text_begins() -> None:
    tokenizer = MAKERS["chars"].train(CORPUS)
    automaton = TextAutomaton(WrittenBytes(tokenizer), ["there"])
    assert [automaton.after(text.encode()) for text in ("", "the", "other", "there", "the ")] == [0, 3, 4, 5, 0]
    rows = automaton.inputs([0, 3], [[], []])
    assert rows[:, 0].tolist() == [[0, 0, 0], [3, 0, 0]]
    assert len(automaton.inputs([3, 3], [[], []])) == 1
