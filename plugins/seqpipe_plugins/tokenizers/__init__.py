"""Shared code of the tokenizers: the normalizer and the training of subwords; one file per component."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.decoders import Decoder
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from seqpipe.plugin import SPECIALS, DataError, replace_surrogates, word_level

# A word, including joiners and soft hyphens, or a sign, with the variation selectors after it and the signs joined to
# it; no match begins with an invisible character.
WORD_PATTERN = r"(?!\p{DI})(?:\w+(?:[\u00ad\u200c\u200d]+\w+)*|[^\w\s](?:[\ufe00-\ufe0f]|\u200d[^\w\s])*)"
Form = Literal["NFC", "NFD", "NFKC", "NFKD"]


@dataclass(frozen=True, kw_only=True)
class SubwordOptions:
    """The options that learned subword tokenizers share.

    Args:
        max_size: Maximum size of the vocabulary, including all characters and the four special tokens.
        normalize: Unicode normalization form that texts are brought to before they are split, so that composed and
            decomposed letters (NFC, NFD), and with NFKC and NFKD full-width forms and ligatures too, are the same.
        lowercase: Normalize words to lower case before the look-up.
        strip_accents: Remove accents before the look-up: é becomes e.
    """

    max_size: Annotated[int, Field(ge=5)] = 8000
    normalize: Form | None = None
    lowercase: bool = False
    strip_accents: bool = False


@dataclass(frozen=True, kw_only=True)
class WordOptions:
    """The options that tokenizers of whole words and of characters share.

    Args:
        normalize: Unicode normalization form that texts are brought to before they are split, so that composed and
            decomposed letters (NFC, NFD), and with NFKC and NFKD full-width forms and ligatures too, are the same.
        lowercase: Normalize words to lower case before the look-up.
        fold_digits: Replace every digit by 0 before the look-up.
        min_count: Minimum number of occurrences of a word in training.
        max_size: Maximum size of the vocabulary; the most frequent words are kept.
    """

    normalize: Form | None = None
    lowercase: bool = False
    fold_digits: bool = False
    min_count: Annotated[int, Field(ge=1)] = 1
    max_size: Annotated[int, Field(ge=1)] | None = None

    @property
    def normalizer(self) -> Normalizer:
        return folding(self.lowercase, self.fold_digits, normalize=self.normalize)

    def train(
        self, texts: Iterable[str | list[str]], splitter: PreTokenizer, decoder: Decoder | None = None
    ) -> Tokenizer:
        """Return a tokenizer with the vocabulary of the texts, see `seqpipe.plugin.word_level`."""
        limits: Any = {"min_count": self.min_count, "max_size": self.max_size}
        return word_level(texts, normalizer=self.normalizer, splitter=splitter, decoder=decoder, **limits)


DEFAULT_WORDS = WordOptions()


def folding(
    lowercase: bool, fold_digits: bool = False, strip_accents: bool = False, normalize: Form | None = None
) -> Normalizer:
    """Return the normalizer of a Unicode form, lower case, digits as 0, letters without accents, or none of them.

    Except for forms and accents, one code point stays one, so that no two tokens share a code point.
    """
    steps: list[Normalizer] = [unicode_form(normalize)] if normalize else []
    if strip_accents:
        steps += [normalizers.NFD(), normalizers.StripAccents(), unicode_form(normalize or "NFC")]
    if lowercase:
        steps += [normalizers.Replace("\u0130", "i"), normalizers.Lowercase()]  # U+0130 alone would become two
    if fold_digits:
        steps.append(normalizers.Replace(Regex(r"\d"), "0"))
    return normalizers.Sequence(steps)


def unicode_form(name: Form) -> Normalizer:
    """Return the normalizer of a Unicode normalization form."""
    return getattr(normalizers, name)()


def train_subwords(
    tokenizer: Tokenizer,
    texts: Iterable[str | list[str]],
    trainer: Callable[..., Any],
    marked: Callable[[str], Iterable[str]] = lambda word: (),
) -> Tokenizer:
    """Train the tokenizer; its vocabulary has the special tokens, then letters, then longer pieces.

    Args:
        tokenizer: Tokenizer without a vocabulary.
        texts: Texts; words already split are joined by spaces.
        trainer: From `tokenizers.trainers`; called with the special tokens.
        marked: The letters of a word that the model marks with their position. The library numbers them in no fixed
            order: here they are numbered first.
    """
    cleaned = [replace_surrogates(text if isinstance(text, str) else " ".join(text)) for text in texts]
    if not any(text.strip() for text in cleaned):
        raise DataError("the training texts are only white space: there is no subword to learn; correct the data")
    letters: set[str] = set()
    for text in cleaned:
        normal = tokenizer.normalizer.normalize_str(text)
        letters.update(*(marked(word) for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)))
    specials = [*SPECIALS, *sorted(letters - {*SPECIALS})]
    try:
        tokenizer.train_from_iterator(cleaned, trainer(special_tokens=specials, show_progress=False))
    except Exception as error:  # the library raises a bare Exception
        raise DataError(f"no subwords can be learned from the training texts: {error}; raise max_size") from error
    return change_model(tokenizer, lambda model: None)


def change_model(tokenizer: Tokenizer, change: Callable[[dict[str, Any]], None]) -> Tokenizer:
    """Return the tokenizer with its model changed; it treats a special token in a text as plain text."""
    # The library matches added tokens in a text first, so [EOS] in a text would become the token. As plain entries of
    # the vocabulary they keep their ids, and the text [EOS] is split like any other. The library has no method that
    # removes an added token; in its JSON they are a list.
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = []
    change(content["model"])
    return Tokenizer.from_str(json.dumps(content))


def rank_pieces(pieces: Sequence[Sequence[Any]]) -> list[tuple[str, float]]:
    """Return [piece, score] by descending scores, the same in every training.

    The library sums in varying order, and gives letters that it had dropped the lowest scores, 0.0001 apart, also in
    varying order: here by code points.
    """
    scores = {str(piece): round(score, 6) for piece, score in pieces}
    letters = sorted(piece for piece in scores if len(piece) == 1)
    bound = min(scores.values()) + 0.0001 * len(letters)
    late = [letter for letter in letters if scores[letter] <= bound]
    scores |= zip(late, sorted((scores[letter] for letter in late), reverse=True), strict=True)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
