"""Shared code of the tokenizers: the normalizer and the training of subwords; one file a component."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.normalizers import Normalizer

from seqpipe.plugin import SPECIALS, DataError, replace_surrogates

# A word, with the joiners and soft hyphens in it, or a sign, with the variation selectors behind it and with the signs
# that it is joined to; nothing begins with a character that is not seen.
WORDS = r"(?!\p{DI})(?:\w+(?:[\u00ad\u200c\u200d]+\w+)*|[^\w\s](?:[\ufe00-\ufe0f]|\u200d[^\w\s])*)"
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


def folding(
    lowercase: bool, fold_digits: bool = False, strip_accents: bool = False, normalize: Form | None = None
) -> Normalizer:
    """A Unicode normalization form, lower case, digits as 0, letters without accents, or none of them.

    But for forms and accents one code point stays one: no two tokens share a place in the text.
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
    """The normalizer of a Unicode normalization form."""
    form: Normalizer = getattr(normalizers, name)()
    return form


def learned_subwords(
    tokenizer: Tokenizer,
    texts: Iterable[str | list[str]],
    trainer: Callable[..., Any],
    marked: Callable[[str], Iterable[str]] = lambda word: (),
) -> Tokenizer:
    """The trained tokenizer; its vocabulary has the special tokens, then letters, then longer pieces.

    Args:
        tokenizer: Without a vocabulary.
        texts: Texts; words already split stand for the text of them and blanks.
        trainer: From `tokenizers.trainers`; gets the special tokens.
        marked: The letters of a word that the model writes with a sign of their place. The library numbers them as
            they come, in no fixed order: here they are numbered first.
    """
    cleaned = [replace_surrogates(text if isinstance(text, str) else " ".join(text)) for text in texts]
    if not any(text.strip() for text in cleaned):
        raise DataError("the training texts hold nothing but blanks: there is no subword to learn; correct the data")
    letters: set[str] = set()
    for text in cleaned:
        normal = tokenizer.normalizer.normalize_str(text)
        letters.update(*(marked(word) for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)))
    specials = [*SPECIALS, *sorted(letters - {*SPECIALS})]
    try:
        tokenizer.train_from_iterator(cleaned, trainer(special_tokens=specials, show_progress=False))
    except Exception as error:  # tokenizers raises a bare one
        raise DataError(f"no subwords can be learned of the training texts: {error}; raise max_size") from error
    return changed(tokenizer, lambda model: None)


def changed(tokenizer: Tokenizer, change: Callable[[dict[str, Any]], None]) -> Tokenizer:
    """Return the tokenizer with its model changed; it treats a special token in a text as plain text."""
    # The library finds its added tokens in a text before anything else, so that [EOS] in a text would become the
    # token. As plain entries of the vocabulary they keep their ids, and the text [EOS] is split like any other. The
    # library has no method that removes an added token; in its JSON form they are a list.
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = []
    change(content["model"])
    return Tokenizer.from_str(json.dumps(content))


def ranked(pieces: Sequence[Sequence[Any]]) -> list[tuple[str, float]]:
    """[piece, score] by falling scores, the same in every training.

    The library sums in changing order, and gives letters that it had dropped the lowest scores, 0.0001 apart, in
    changing order too: here by code points.
    """
    scores = {str(piece): round(score, 6) for piece, score in pieces}
    letters = sorted(piece for piece in scores if len(piece) == 1)
    bound = min(scores.values()) + 0.0001 * len(letters)
    late = [letter for letter in letters if scores[letter] <= bound]
    scores |= zip(late, sorted((scores[letter] for letter in late), reverse=True), strict=True)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
