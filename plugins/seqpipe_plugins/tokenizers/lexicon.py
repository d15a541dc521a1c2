"""A tokenizer of the words of a lexicon, for scripts without spaces between words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from seqpipe.plugin import DataError, Folder, UsageError, open_bundle, replace_surrogates

from . import DEFAULT_WORDS, WordOptions

MAX_WORDS = 200_000  # words; a bundle builds their pattern whenever it is opened, which takes seconds
MAX_LETTERS = 200  # characters of a word, which the trie and its pattern are as deep as
_COUNT = re.compile(r"(\S.*?)(?:\t.*| +\d+(?: +\S+)?)?")  # a word, and a count after a tab or spaces; a tag may follow
_MAX_COMPARED_TEXTS = 2_000  # maximum dev texts that a run segments for the report

# Scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, kana, Bopomofo, Han.
UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
SPACED = rf"[^\W{UNSPACED}]"  # a letter, digit or mark of all other scripts
END = rf"(?!\p{{M}}|(?<={SPACED}){SPACED})"  # a word does not end before a mark, or within a spaced word
BRANCHES_PER_GROUP = 64  # branches at the root that share a look-ahead at the range of their characters


class Lexicon:
    """Splits text into the words of a lexicon by forward maximum matching: the longest word at each place.

    Where no word begins, a run of letters and digits of scripts with spaces (Latin, Cyrillic, …) is a unit, and any
    other character with its marks is a unit: an unknown character does not affect its neighbours. Words of such letters
    match whole words only; a word may contain spaces (Việt Nam). White space between words is dropped.

    The lexicon is a file, or the words that the training data is split into, or those into which the bundle of a
    trained run splits the training texts. The last two leave out words at which maximum matching is wrong more often
    than right in the training texts (they also occur as adjacent words), and keep the 200,000 most frequent. Words of
    records (`words`) are unchanged. The vocabulary has the words of the training data; each other word is one [UNK].

    Args:
        path: File of the lexicon, one word per line; text after a tab, or a count after a space, is ignored.
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
        options: WordOptions = DEFAULT_WORDS,
    ):
        if path is not None and run is not None:
            raise UsageError("lexicon.run: the words come from `path` or from `run`; delete one of them")
        self.path, self.run, self.joiner, self.options = path, run, joiner, options
        self.normalizer = options.normalizer

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        """Learns the vocabulary from texts, or from words already split.

        Raises:
            DataError: The file has no word, the run is not a segmenter, or there is neither and the texts are not
                split.
        """
        if self.path is not None:
            splitter = _splitter(self._normal(word) for word in _words_of_file(self.path))
        else:
            texts = [*texts]
            splitter = self._train_splitter(texts)
        return self.options.train(texts, splitter, None if self.joiner else decoders.Fuse())

    def dev_messages(self, tokenizer: Tokenizer, texts: Sequence[str | list[str]]) -> list[str]:
        """Return the word F1 of the tokenizer against the run's words on dev texts."""
        whole = [replace_surrogates(text) for text in texts if isinstance(text, str)][:_MAX_COMPARED_TEXTS]
        if self.run is None or not whole:
            return []
        gold = [{(start, start + len(word)) for word, start in words} for words in _segment(self.run, whole)]
        split = [{*tokenizer.encode(text, add_special_tokens=False).offsets} for text in whole]
        right = sum(len(a & b) for a, b in zip(gold, split, strict=True))
        f1 = 2 * right / max(1, sum(map(len, gold)) + sum(map(len, split)))
        return [f"the lexicon splits {len(whole):,} dev texts like the run {self.run.name}: {f1:.2%} word F1"]

    def _train_splitter(self, texts: Sequence[str | list[str]]) -> PreTokenizer:
        """Return a splitter into the words of the training texts, except those that would be wrong more often than
        right.

        The texts are split into words by the run, or already split.
        """
        sentences = [[*text] for text in texts if not isinstance(text, str)]
        whole = [replace_surrogates(text) for text in texts if isinstance(text, str)]
        if self.run is None and whole:
            fix = "name a lexicon (`path`) or a trained segmenter (`run`), or use a reader that yields `words`"
            raise DataError(f"there is no lexicon, and the training data is not split into words: {fix}")
        if self.run is not None and sentences:
            raise DataError("the training data is split into words, which are the lexicon; delete `run`")
        if self.run is not None:
            sentences = [[word for word, _ in words] for words in _segment(self.run, whole)]
        sentences = [[self._normal(word) for word in words] for words in sentences]
        counts = Counter(word for sentence in sentences for word in sentence)
        words = [word for word, _ in counts.most_common(MAX_WORDS) if len(word) <= MAX_LETTERS]
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
    if len(lexicon) > MAX_WORDS:
        problem = f"a lexicon of {len(lexicon):,} words exceeds the limit of {MAX_WORDS:,}"
        raise DataError(f"{problem}; keep the frequent ones")
    if long := next((word for word in lexicon if len(word) > MAX_LETTERS), ""):
        raise DataError(f"the lexicon has a word over the limit of {MAX_LETTERS} characters, {long[:50]!r}…; delete it")
    return pre_tokenizers.Split(Regex(longest_match(lexicon)), "removed", invert=True)


def _words_of_file(path: Path) -> Iterator[str]:
    """Yield the words of a lexicon's lines; DataError names file, line and fix."""
    empty = True
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
            if not line.strip():
                continue
            match = _COUNT.fullmatch(line.rstrip()[: 5 * MAX_LETTERS])  # whose time grows with the square of spaces
            if match is None:
                raise DataError(f"{path}:{number}: the line {line[:50]!r} does not begin with a word; delete the space")
            empty = False
            yield match[1].rstrip()
    except UnicodeDecodeError as error:
        fix = "convert the file, for instance with `iconv -f ENCODING -t UTF-8`"
        raise DataError(f"{path}: the lexicon is not UTF-8 ({error.reason}); {fix}") from error
    except OSError as error:
        raise DataError(f"{path}: the lexicon cannot be read ({error.strerror})") from error
    if empty:
        raise DataError(f"{path}: the lexicon has no word; write one word per line")


def _segment(run: Path, texts: Sequence[str]) -> Iterator[list[tuple[str, int]]]:
    """Yield the words of each text with their starts from the bundle of a segmenter; DataError for another bundle."""
    folder = run if (run / "bundle.json").is_file() else run / "bundle"
    if not (folder / "bundle.json").is_file():
        raise DataError(f"{run}: no bundle of a segmenter; train and export one: seqpipe run PIPELINE.yaml")
    model = open_bundle(folder, "cpu")
    answer = model.manifest.answer
    if answer.get("scheme") != "BMES":
        fix = "name the run of a segmenter, whose head has scheme: BMES"
        raise DataError(f"{run}: its answers are {answer['kind']!r}, not words; {fix}")
    answers: Iterator[Any] = model.predictor.stream({str(model.manifest.field): text} for text in texts)
    for spans in answers:
        yield [(span["word"], span["start"]) for span in spans]


def longest_match(words: Iterable[str]) -> str:
    """Return a pattern (Oniguruma) whose matches are the units of a text; the trie tries longer words first."""
    trie: dict[str, Any] = {}
    for word in words:
        if len(word) > 1 and not re.fullmatch(SPACED + "+", word):  # others are units anyway
            node = trie
            for character in word:
                node = node.setdefault(character, {})
            node[""] = {}
    # Oniguruma tries the alternatives of the root one by one at every position. In groups, those that cannot match are
    # skipped by one look at the next character: about a hundred looks instead of thousands of alternatives.
    branches, groups = sorted(trie.items()), []
    for start in range(0, len(branches), BRANCHES_PER_GROUP):
        group = branches[start : start + BRANCHES_PER_GROUP]
        first, last = _escape(group[0][0]), _escape(group[-1][0])
        groups.append(f"(?=[{first}-{last}])(?:{'|'.join(_branch(*branch) for branch in group)})")
    units = rf"{SPACED}+|\S\p{{M}}*"
    return f"(?:{'|'.join(groups)}){END}|{units}" if trie else units


def _branch(character: str, node: dict[str, Any]) -> str:
    branches = [_branch(*branch) for branch in sorted(node.items()) if branch[0]]
    if not branches:
        return _escape(character)
    inner = branches[0] if len(branches) == 1 and "" not in node else f"(?:{'|'.join(branches)})"
    return f"{_escape(character)}{inner}{'?' if '' in node else ''}"


def _escape(character: str) -> str:
    """Escape a character for a pattern and a bracket expression."""
    return f"\\{character}" if character in r"\^$.|?*+()[]{}-" else character
