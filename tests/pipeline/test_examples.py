"""Examples at the end of a run are a line or two each, cut where a reader would cut them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from seqpipe.console import Console, text_width
from seqpipe.pipeline.full_run import ANSWER, INPUT, excerpt, print_answers, shorten_lines
from seqpipe.runtime.manifest import Golden

WORDS = " ".join(f"word{number}" for number in range(100))


def test_a_text_that_fits_stands_whole_on_one_line() -> None:
    assert excerpt("one\ntwo  three\t four", 30) == "one two three four"
    text = "x" * ANSWER
    assert excerpt(text, ANSWER) == text


def test_a_long_text_is_cut_between_words() -> None:
    cut = excerpt(WORDS, 60)
    assert cut.endswith(" …")
    assert WORDS.startswith(cut.removesuffix(" …") + " ")
    assert 40 <= len(cut) <= 62


@pytest.mark.parametrize("word", ["word0", "word20", "word50", "word98", "word99"])
def test_a_long_text_is_cut_around_the_place_that_matters(word: str) -> None:
    cut = excerpt(WORDS, 60, WORDS.index(word))
    assert word in cut.split()
    kept = cut.removeprefix("… ").removesuffix(" …")
    assert f" {kept} " in f" {WORDS} "
    assert cut.startswith("…") == (not WORDS.startswith(kept))
    assert cut.endswith("…") == (not WORDS.endswith(kept))


def test_a_text_without_blanks_is_cut_by_its_columns() -> None:
    cut = excerpt("春江潮水连海平" * 30, 60, 100)
    assert (cut[:2], cut[-2:]) == ("… ", " …")
    assert text_width(cut) == 64


def test_few_lines_stand_below_each_other_and_many_are_joined() -> None:
    assert shorten_lines(["Ada: PER", "Oslo: LOC"]) == ["Ada: PER", "Oslo: LOC"]
    assert shorten_lines(list("abcde")) == ["a; b; c; d; e"]
    lines = [f"word{number}: NOUN (0.99)" for number in range(40)]
    (line,) = shorten_lines(lines)
    count = line.count("NOUN")
    assert line.endswith(f"; … and {40 - count} more")
    assert line.startswith("; ".join(lines[:count]))
    assert count > 5


def test_the_answers_of_a_bundle_are_shown_with_their_texts(capsys: pytest.CaptureFixture[str]) -> None:
    passage = f"{WORDS} Ada\nlives in Oslo. {WORDS}"
    start = passage.index("Ada")
    golden = [
        {
            "record": {"question": "Who?", "text": passage},
            "answer": {"answer": "Ada", "start": start, "end": start + 3},
        },
        {"record": {"words": ["a", "b"]}, "answer": {"answer": "", "start": 0, "end": 0}},
        {"record": {"points": [[0.125, 0.25]] * 40}, "answer": {"answer": "0 1"}},
        {"record": {"text": "left out"}, "answer": {"answer": "c"}, "options": {"n_best": 3}},
    ]
    kind = SimpleNamespace(lines=lambda answer: [answer["answer"] or "(nothing)"])
    model: Any = SimpleNamespace(
        manifest=SimpleNamespace(golden=[Golden.model_validate(example) for example in golden]),
        predictor=SimpleNamespace(kind=kind),
    )
    print_answers(cast(Any, model), [], Console())
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["", "answers of the bundle:"]
    assert said[2].startswith("  Who? | … word")
    assert " Ada lives in Oslo. word0 " in said[2]
    assert said[3] == "    Ada"
    assert said[4:6] == ["  a b", "    (nothing)"]
    assert said[6].endswith(", …")
    assert len(said[6]) <= INPUT + 4
    assert len(said) == 8
