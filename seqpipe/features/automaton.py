"""The bytes that each piece of a tokenizer writes, by which texts are looked for in what is written."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from functools import cached_property

from tokenizers import Tokenizer, pre_tokenizers

from seqpipe.features.vocabulary import SPECIALS, replace_surrogates


def utf8(text: str) -> bytes:
    return replace_surrogates(text).encode()


class WrittenBytes:
    """The bytes that pieces write, of a target tokenizer.

    With a byte-level tokenizer a piece may be part of a character. With others it is text, with the blank before or
    behind it where the decoder puts one; the special tokens write nothing.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._decoder = tokenizer.decoder
        self._vocabulary = [tokenizer.id_to_token(i) or "" for i in range(tokenizer.get_vocab_size())]
        kinds = repr(tokenizer.decoder)
        self.is_byte_level, self._falls_back = "ByteLevel(" in kinds, "ByteFallback(" in kinds

    @cached_property
    def pieces(self) -> list[bytes]:
        """What each token of the vocabulary writes, by its id."""
        return [b"" if i < len(SPECIALS) else self.of_token(token) for i, token in enumerate(self._vocabulary)]

    def of_token(self, token: str) -> bytes:
        """What a token writes between two others; a copied word is one too."""
        if self.is_byte_level and all(letter in _BYTES for letter in token):
            return bytes(_BYTES[letter] for letter in token)
        if self._falls_back and (byte := re.fullmatch("<0x([0-9A-F]{2})>", token)):
            return bytes.fromhex(byte[1])
        before, between, behind = self._context
        text = self._joined([between, token, between])
        if text.endswith(behind):
            return utf8(text[len(before) : len(text) - len(behind)])
        return utf8(self._joined([between, token])[len(before) :])  # the decoder drops the blank behind an opening mark

    @cached_property
    def _context(self) -> tuple[str, str, str]:
        """The text of a token, the token, and what the same one adds behind itself."""
        words = (t for t in self._vocabulary[len(SPECIALS) :] if any(map(str.isalnum, t)) and len(t) < 9)
        tokens = sorted(words, key=lambda token: (len(self._joined([token, token])), token))
        token = tokens[0] if tokens else "x"
        text = self._joined([token])
        return text, token, self._joined([token, token])[len(text) :]

    def _joined(self, tokens: Sequence[str]) -> str:
        return str(self._decoder.decode(list(tokens))) if self._decoder else " ".join(tokens)

    def torn(self, tokens: Sequence[int]) -> int:
        """Count the characters at the end of these tokens' text that stand for a beginning of one."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"".join(self.pieces[token] for token in tokens if token < len(self.pieces)))
        open_bytes = len(decoder.getstate()[0])
        return min(1, open_bytes) if self.is_byte_level else open_bytes


def _byte_letters() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for."""
    # Those that print stand for themselves, the others in order from U+0100 on (Radford et al. 2019).
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_letters()
assert set(_BYTES) == set(pre_tokenizers.ByteLevel.alphabet())
