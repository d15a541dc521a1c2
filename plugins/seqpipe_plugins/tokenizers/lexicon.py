"""A tokenizer of the words of a lexicon, for scripts without blanks between words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from seqpipe.plugin import DataError, Folder, UsageError, load, replace_surrogates, word_level

from . import Form, folding

MOST = 200_000  # words; a bundle builds their pattern each time it is opened, which takes seconds
_COUNT = re.compile(r"(\S.*?)(?:\t.*| +\d+(?: +\S+)?)?")  # a word, and a count behind a tab or blanks; a tag may follow
_COMPARED = 2_000  # texts of dev, at most, that a run segments for the report

# Scripts without blanks between words: Thai, Lao, Tibetan, Burmese, Khmer, kana, Bopomofo, Han.
UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
SPACED = rf"[^\W{UNSPACED}]"  # a letter, digit or mark of all other scripts
END = rf"(?!\p{{M}}|(?<={SPACED}){SPACED})"  # what a word does not stop before: a mark, or the rest of a spaced word
GROUP = 64  # branches at the root between two looks at the range of their characters


class Lexicon:
    """Splits text into the words of a lexicon by forward maximum matching: the longest word at each place.

    Where no word begins, letters and digits of scripts that write blanks (Latin, Cyrillic, …) are a unit as far as they
    go, and anything else is a unit of one character with its marks: no unknown character takes a neighbour with it.
    Words of such letters match whole words only; a word may hold blanks (Việt Nam). White space between words is
    dropped.

    The lexicon is a file, or the words that the training data is split into, or those into which the bundle of a
    trained run splits the training texts. Of the last two, words are left out at which maximum matching is wrong more
    often than right in the training texts, as with words that are chance neighbours elsewhere; of more than 200,000 the
    most frequent are taken. Words that records have (`words`) stay as they are. The vocabulary holds the words of the
    training data; others are [UNK], each by itself.

    Args:
        path: File of the lexicon: a word a line; what follows a tab, or a count behind a blank, is not read.
        run: Run of a segmenter (a head with `scheme: BMES`) that has a bundle, or a bundle, whose words on the training
            texts are the lexicon.
        joiner: Text between the words of a generated text, and of records that are split.
        normalize: Unicode normalization form that texts and lexicon are brought to.
        lowercase: Normalize texts and lexicon to lower case.
        fold_digits: Replace every digit by 0 in texts and lexicon.
        min_count: Minimum number of occurrences of a word in training to be in the vocabulary.
        max_size: Maximum size of the vocabulary; the most frequent words are kept.
    """

    def __init__(
        self,
        *,
        path: Path | None = None,
        run: Folder = None,
        joiner: Literal["", " "] = "",
        normalize: Form | None = None,
        lowercase: bool = False,
        fold_digits: bool = False,
        min_count: Annotated[int, Field(ge=1)] = 1,
        max_size: Annotated[int, Field(ge=1)] | None = None,
    ):
        if path is not None and run is not None:
            raise UsageError("lexicon.run: the words come from `path` or from `run`; leave one of them out")
        self.path, self.run, self.joiner, self.min_count, self.max_size = path, run, joiner, min_count, max_size
        self.normalizer = folding(lowercase, fold_digits, normalize=normalize)

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Learns the vocabulary from texts, or from words already split.

        Raises:
            DataError: The file has no word, the run is no segmenter, or there is neither, and the texts are not split.
        """
        if self.path is not None:
            splitter = _splitter(self._normal(word) for word in _words_of_file(self.path))
        else:
            texts = [*texts]
            splitter = self._learned_splitter(texts)
        return word_level(
            texts,
            normalizer=self.normalizer,
            splitter=splitter,
            decoder=None if self.joiner else decoders.Fuse(),
            min_count=self.min_count,
            max_size=self.max_size,
        )

    def dev_messages(self, tokenizer: Tokenizer, texts: Sequence[str | list[str]]) -> list[str]:
        """Return the word F1 of the tokenizer against the run's words on dev texts."""
        whole = [replace_surrogates(text) for text in texts if isinstance(text, str)][:_COMPARED]
        if self.run is None or not whole:
            return []
        gold = [{(start, start + len(word)) for word, start in words} for words in _segmented(self.run, whole)]
        split = [{*tokenizer.encode(text, add_special_tokens=False).offsets} for text in whole]
        right = sum(len(a & b) for a, b in zip(gold, split, strict=True))
        f1 = 2 * right / max(1, sum(map(len, gold)) + sum(map(len, split)))
        return [f"the lexicon splits {len(whole):,} dev texts as the run {self.run.name} does: {f1:.2%} word F1"]

    def _learned_splitter(self, texts: Sequence[str | list[str]]) -> PreTokenizer:
        """Splits at the words of the training texts, but for those at which it would be wrong more often than right.

        The texts are split into words by the run, or come so.
        """
        sentences = [[*text] for text in texts if not isinstance(text, str)]
        whole = [replace_surrogates(text) for text in texts if isinstance(text, str)]
        if self.run is None and whole:
            fix = "name a lexicon (`path`) or a trained segmenter (`run`), or use a reader that yields `words`"
            raise DataError(f"the lexicon would be the words of the training data, which is not split: {fix}")
        if self.run is not None and sentences:
            raise DataError("the training data is split into words, which are the lexicon; leave `run` out")
        if self.run is not None:
            sentences = [[word for word, _ in words] for words in _segmented(self.run, whole)]
        sentences = [[self._normal(word) for word in words] for words in sentences]
        counts = Counter(word for sentence in sentences for word in sentence)
        words = [word for word, _ in counts.most_common(MOST)]
        splitter, balance = _splitter(words), Counter[str]()
        for sentence in sentences:
            places, start = set[tuple[int, int]](), 0
            for word in sentence:
                places.add((start, start + len(word)))
                start += len(word) + len(self.joiner)
            for word, place in splitter.pre_tokenize_str(self.joiner.join(sentence)):
                balance[word] += 1 if place in places else -1
        return _splitter(word for word in words if balance[word] >= 0)

    def _normal(self, word: str) -> str:
        return str(self.normalizer.normalize_str(replace_surrogates(word)))


def _splitter(words: Iterable[str]) -> PreTokenizer:
    lexicon = {word for word in words if word.strip() == word != ""}
    if len(lexicon) > MOST:
        raise DataError(f"a lexicon of {len(lexicon):,} words; {MOST:,} is the most: keep the frequent ones")
    return pre_tokenizers.Split(Regex(longest_match(lexicon)), "removed", invert=True)


def _words_of_file(path: Path) -> Iterator[str]:
    """The words of a lexicon's lines; DataError names file, line and fix."""
    empty = True
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
            if not line.strip():
                continue
            match = _COUNT.fullmatch(line.rstrip())
            if match is None:
                raise DataError(f"{path}:{number}: the line {line!r} does not begin with a word; delete the blank")
            empty = False
            yield match[1].rstrip()
    except UnicodeDecodeError as error:
        fix = "convert the file, for instance with `iconv -f ENCODING -t UTF-8`"
        raise DataError(f"{path}: the lexicon is not UTF-8 ({error.reason}); {fix}") from error
    except OSError as error:
        raise DataError(f"{path}: the lexicon cannot be read ({error.strerror})") from error
    if empty:
        raise DataError(f"{path}: the lexicon has no word; write a word a line")


def _segmented(run: Path, texts: Sequence[str]) -> Iterator[list[tuple[str, int]]]:
    """The words of each text and where they start, as the bundle of a segmenter splits it; DataError if it is none."""
    folder = run if (run / "bundle.json").is_file() else run / "bundle"
    if not (folder / "bundle.json").is_file():
        raise DataError(f"{run}: there is no bundle of a segmenter; train and export one: seqpipe run PIPELINE.yaml")
    model = load(folder, "cpu")
    answer = model.manifest.answer
    if answer.get("scheme") != "BMES":
        fix = "name the run of a segmenter, whose head has scheme: BMES"
        raise DataError(f"{run}: its answers are {answer['kind']!r}, not words; {fix}")
    answers: Iterator[Any] = model.predictor.stream({str(model.manifest.field): text} for text in texts)
    for spans in answers:
        yield [(span["word"], span["start"]) for span in spans]


def longest_match(words: Iterable[str]) -> str:
    """A pattern (Oniguruma) whose matches are the units of a text; each branch of the trie tries longer words first."""
    trie: dict[str, Any] = {}
    for word in words:
        if len(word) > 1 and not re.fullmatch(SPACED + "+", word):  # those are units anyway
            node = trie
            for character in word:
                node = node.setdefault(character, {})
            node[""] = {}
    # Oniguruma tries the alternatives of the root one by one at every place of a text. In groups, those that cannot
    # match are skipped by one look at the next character: about a hundred looks in place of some thousand characters.
    branches, groups = sorted(trie.items()), []
    for start in range(0, len(branches), GROUP):
        group = branches[start : start + GROUP]
        first, last = _escaped(group[0][0]), _escaped(group[-1][0])
        groups.append(f"(?=[{first}-{last}])(?:{'|'.join(_branch(*branch) for branch in group)})")
    units = rf"{SPACED}+|\S\p{{M}}*"
    return f"(?:{'|'.join(groups)}){END}|{units}" if trie else units


def _branch(character: str, node: dict[str, Any]) -> str:
    branches = [_branch(*branch) for branch in sorted(node.items()) if branch[0]]
    if not branches:
        return _escaped(character)
    inner = branches[0] if len(branches) == 1 and "" not in node else f"(?:{'|'.join(branches)})"
    return f"{_escaped(character)}{inner}{'?' if '' in node else ''}"


def _escaped(character: str) -> str:
    """Escape a character for a pattern and a bracket expression."""
    return f"\\{character}" if character in r"\^$.|?*+()[]{}-" else character
