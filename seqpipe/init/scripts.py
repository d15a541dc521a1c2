"""The scripts that texts are written in: without spaces between words, or with letters that have several forms."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field

EXAMINED_CHARACTERS = 200  # characters at the beginning of a text that are examined
_UNSPACED = re.compile(
    "[\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Myanmar
    "\u1780-\u17ff"  # Khmer
    "\u3040-\u30ff\uff66-\uff9f\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"  # Japanese, Chinese
)
_COMPOSED = re.compile("[\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff\u0900-\u0dff]")  # Hangul, Indic
_HANGUL = re.compile("[\u1100-\u11ff\uac00-\ud7ff]")
_FULL_WIDTH = re.compile("[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff66-\uff9f]")  # and half-width katakana


def has_unspaced(text: str) -> bool:
    """Return whether a text is written without spaces between words, by its first characters."""
    return bool(_UNSPACED.search(text[:EXAMINED_CHARACTERS]))


def count_unspaced(text: str) -> int:
    """Return the number of characters of scripts without spaces between words."""
    return 0 if text.isascii() else len(_UNSPACED.findall(text))


@dataclass
class Scripts:
    """Numbers of texts by script."""

    texts: int = 0
    unspaced: int = 0  # written without spaces, such as Chinese, Japanese, Thai, Lao, Khmer and Burmese
    composed: int = 0  # with letters that may be one code point or several: Hangul and the scripts of India
    hangul: int = 0
    letters: set[str] = field(default_factory=set)  # in Hangul, of decomposed syllables; those that end a word apart
    decomposed: int = 0  # not in the normalization form NFC
    full_width: int = 0  # with full-width letters or digits, or half-width katakana

    def add(self, text: str) -> None:
        """Count a further text."""
        head = text[:EXAMINED_CHARACTERS]
        self.texts += 1
        if not head.isascii():
            self.unspaced += bool(_UNSPACED.search(head))
            self.composed += bool(_COMPOSED.search(head))
            if _HANGUL.search(head):
                self.hangul += 1
                for word in unicodedata.normalize("NFD", head).split():
                    self.letters.update(word[:-1], [f"{word[-1]}</w>"])
            self.decomposed += not unicodedata.is_normalized("NFC", head)
            self.full_width += bool(_FULL_WIDTH.search(head))

    @property
    def are_unspaced(self) -> bool:
        """True if most texts are written without spaces between words."""
        return self.unspaced > self.texts / 2

    def normalization(self, *, generates: bool = False) -> tuple[str, str] | None:
        """Return the Unicode normalization form for the tokenizer and the reason; None for none.

        In texts that the model `generates`, full-width signs stay.
        """
        for number, form, reason in (
            (0 if generates else self.full_width, "NFKC", "full-width letters and digits (Ａ１) are read as A1"),
            (self.composed, "NFC", "letters written as one code point or as several are read alike"),
            (self.decomposed, "NFC", "letters are read alike whether an accent is a code point of its own or not"),
        ):
            if number >= max(1, self.texts / 100):
                return form, reason
        return None
