"""Word segmentation: a trained tagger of characters beside forward maximum matching with the words of training.

    python benchmarks/segmentation.py                      # both data sets, one seed
    python benchmarks/segmentation.py --only weibo --seeds 3

Word F1 on the test part: a word is right if both its ends are (Emerson 2005). `weibo`: weibo_ner, where the place of a
character in its word is glued to it; those words are another program's, so this is silver. `enja`: the Japanese side of
small_parallel_enja without its blanks, trained on the first 15,000 lines. Maximum matching takes the longest word of
the training part at each place, else one character. The figures it prints go into RESULTS.md by hand.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import common
from common import HERE, PREPARED, RUNS

PARTS = ("train", "dev", "test")
LINES = 15_000  # of the training part of enja
Sentence = list[str]  # its words


def weibo(folder: Path, part: str) -> Iterator[Sentence]:
    """The messages of weibo_ner: a line is a character, its place in its word, a tab and a tag."""
    words: Sentence = []
    for line in (folder / "weibo_ner" / f"weiboNER_2nd_conll.{part}").read_text(encoding="utf-8").split("\n"):
        if line.strip():
            character, place = line[0], line[1:].partition("\t")[0]
            if place == "0" or not words:
                words.append(character)
            else:
                words[-1] += character
        elif words:
            yield words
            words = []
    if words:
        yield words


def enja(folder: Path, part: str) -> Iterator[Sentence]:
    """The Japanese sentences of small_parallel_enja, of training the first."""
    lines = (folder / "small_parallel_enja" / f"{part}.ja").read_text(encoding="utf-8").splitlines()
    yield from (line.split() for line in lines[:LINES])


DATA_SETS = {"weibo": weibo, "enja": enja}


def maximum_matching(words: Sequence[Sentence], text: str) -> Sentence:
    """The text split by forward maximum matching with these sentences' words."""
    lexicon = {word for sentence in words for word in sentence}
    longest = max(map(len, lexicon))
    return _match(lexicon, longest, text)


def _match(lexicon: set[str], longest: int, text: str) -> Sentence:
    split: Sentence = []
    at = 0
    while at < len(text):
        size = next((n for n in range(min(longest, len(text) - at), 1, -1) if text[at : at + n] in lexicon), 1)
        split.append(text[at : at + size])
        at += size
    return split


def places(words: Sentence) -> set[tuple[int, int]]:
    """Start and end of each word in the text without blanks."""
    ends = [sum(map(len, words[: i + 1])) for i in range(len(words))]
    return {(end - len(word), end) for word, end in zip(words, ends, strict=True)}
