"""Automata over the pieces of a tokenizer that forbid or allow texts, and the bytes that each piece decodes to."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers

from seqpipe.features.vocabulary import PAD, SPECIALS, UNK, replace_surrogates

MOST_BYTES = 1 << 14  # of the texts of one automaton, or of those that end a text
MOST_ARCS = 1 << 16  # of a trie; a step of search compares all of them with the state of each beam
_STATES_PER_BLOCK = 256  # states whose arcs are computed at once


def utf8(text: str) -> bytes:
    return replace_surrogates(text).encode()


class WrittenBytes:
    """The bytes that the pieces of a target tokenizer decode to.

    With a byte-level tokenizer a piece may be part of a character. With others it is text, with the space that the
    decoder puts before or after it; special tokens decode to nothing.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._decoder = tokenizer.decoder
        self.opening: set[bytes] = set()  # marks after which the decoder drops the space before a piece
        self._vocabulary = [tokenizer.id_to_token(i) or "" for i in range(tokenizer.get_vocab_size())]
        kinds = repr(tokenizer.decoder)
        self.is_byte_level, self._falls_back = "ByteLevel(" in kinds, "ByteFallback(" in kinds

    @cached_property
    def pieces(self) -> list[bytes]:
        """Return the bytes that each token of the vocabulary decodes to, by its id."""
        return [b"" if i < len(SPECIALS) else self.token_bytes(token) for i, token in enumerate(self._vocabulary)]

    def token_bytes(self, token: str) -> bytes:
        """Return the bytes that a token, or a copied word, decodes to between two others."""
        if self.is_byte_level and all(letter in _BYTES for letter in token):
            return bytes(_BYTES[letter] for letter in token)
        if self._falls_back and (byte := re.fullmatch("<0x([0-9A-F]{2})>", token)):
            return bytes.fromhex(byte[1])
        before, between, behind = self._context
        text = self._decode_tokens([between, token, between])
        if text.endswith(behind):
            return utf8(text[len(before) : len(text) - len(behind)])
        text = self._decode_tokens([between, token])
        self.opening.add(utf8(text[-1:]))
        return utf8(text[len(before) :])

    @cached_property
    def joined(self) -> tuple[bytes, np.ndarray]:
        """Return the bytes of all tokens, with a byte between that no text has, and where each token's begin (V,)."""
        return b"\xff".join(self.pieces), np.cumsum([0, *(len(piece) + 1 for piece in self.pieces[:-1])])

    @cached_property
    def _context(self) -> tuple[str, str, str]:
        """Return the text of a token, the token, and the text that a repetition adds."""
        words = (t for t in self._vocabulary[len(SPECIALS) :] if any(map(str.isalnum, t)) and len(t) < 9)
        tokens = sorted(words, key=lambda token: (len(self._decode_tokens([token, token])), token))
        token = tokens[0] if tokens else "x"
        text = self._decode_tokens([token])
        return text, token, self._decode_tokens([token, token])[len(text) :]

    def _decode_tokens(self, tokens: Sequence[str]) -> str:
        return str(self._decoder.decode(list(tokens))) if self._decoder else " ".join(tokens)

    def count_incomplete(self, tokens: Sequence[int]) -> int:
        """Count the characters at the end of these tokens' text that stand for an incomplete character."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"".join(self.pieces[token] for token in tokens if token < len(self.pieces)))
        open_bytes = len(decoder.getstate()[0])
        return min(1, open_bytes) if self.is_byte_level else open_bytes


# The byte that each letter of a byte-level vocabulary stands for (Radford et al. 2019): those that print stand for
# themselves, and letters from U+0100 on for the others, in order.
_LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
_BYTES = {letter: ord(letter) for letter in _LETTERS if ord(letter) < 256}
_BYTES |= zip(_LETTERS[len(_BYTES) :], sorted({*range(256)} - {*_BYTES.values()}), strict=True)


# Automata over pieces, as `seqpipe.nn.search.PieceAutomaton` and the graph run them.


class TextAutomaton:
    """The automaton of Aho and Corasick (1975) over bytes, as arcs over the pieces of a tokenizer.

    A state is the longest prefix of a banned text that the output ends with. States are numbered by the length of the
    prefix: of two arcs for a piece, one of any state and one of this state, the latter leads to the longer prefix, so
    the greatest next state is the right one.
    """

    def __init__(self, written: WrittenBytes, texts: Sequence[str]):
        self.written, pieces = written, written.pieces
        whole = {utf8(text) for text in texts}
        beginnings = sorted({text[:i] for text in whole for i in range(len(text) + 1)}, key=len)
        number = {beginning: i for i, beginning in enumerate(beginnings)}
        children: list[list[tuple[int, int]]] = [[] for _ in beginnings]
        for beginning in beginnings[1:]:
            children[number[beginning[:-1]]].append((beginning[-1], number[beginning]))
        self._next = np.zeros((len(beginnings), 256), np.int32)
        self._matches = np.array([beginning in whole for beginning in beginnings])
        shorter = np.zeros(len(beginnings), np.int32)  # the state of the longest proper suffix that is a prefix
        for state, beginning in enumerate(beginnings):
            self._next[state] = self._next[shorter[state]]
            self._matches[state] |= self._matches[shorter[state]]
            for byte, child in children[state]:
                shorter[child] = self._next[state, byte] if state else 0
                self._next[state, byte] = child
            if beginning.endswith(tuple(written.opening)):
                self._next[state, ord(" ")] = state
        self._longest = len(beginnings[-1])
        # The special token [UNK] has no text; it is banned by its name.
        never = [[-1, SPECIALS.index(UNK), -1]] if UNK in texts else []
        self._arcs = np.concatenate([np.array(never, np.int64).reshape(-1, 3), self._arcs_of(pieces, 0)])

    def after(self, text: bytes) -> int:
        """Return the state after a text."""
        state = 0
        for byte in text[-self._longest :]:
            state = int(self._next[state, byte])
        return state

    def inputs(self, starts: Sequence[int], copied: Sequence[Sequence[str]]) -> np.ndarray:
        """Return the arcs (1 or B, A, 3) for texts that begin in these states and may copy these words."""
        V, rows = len(self.written.pieces), []
        for start, words in zip(starts, copied, strict=True):
            more = self._arcs_of([self.written.token_bytes(word) for word in words], V)
            rows.append(np.concatenate([np.array([[start, 0, 0]]), self._arcs, more]))
        return stack_arcs(rows)

    def _arcs_of(self, pieces: Sequence[bytes], first: int) -> np.ndarray:
        """Return the arcs (A, 3) of pieces whose ids are consecutive from `first`."""
        ids = np.array([i for i, piece in enumerate(pieces) if piece], np.int64)
        if not len(ids):
            return np.zeros((0, 3), np.int64)
        lengths = np.array([len(pieces[i]) for i in ids])
        data = np.array([list(pieces[i].ljust(lengths.max(), b"\0")) for i in ids], np.uint8)  # (P, L)
        # From state 0: the state after each byte (P, L + 1), and the pieces that contain a text.
        trail, dead = np.zeros((len(ids), data.shape[1] + 1), np.int32), np.zeros(len(ids), bool)
        for j in range(data.shape[1]):
            trail[:, j + 1] = np.where(lengths > j, self._next[trail[:, j], data[:, j]], trail[:, j])
            dead |= self._matches[trail[:, j + 1]]
        ends = np.where(dead, -1, trail[:, -1])
        arcs = [np.stack([np.full(len(ids), -1), ids, ends], 1)[ends != 0]]
        # From other states only pieces whose first byte leads to another state than from state 0, until both paths
        # meet: few of the V × S pairs of pieces and states.
        alive = np.flatnonzero(~dead)
        alive = alive[np.argsort(data[alive, 0], kind="stable")]
        begins = np.searchsorted(data[alive, 0], np.arange(257))
        for block in range(1, len(self._next), _STATES_PER_BLOCK):
            state, byte = np.nonzero(self._next[block : block + _STATES_PER_BLOCK] != self._next[0])
            count = begins[byte + 1] - begins[byte]
            state = np.repeat(state + block, count)
            place = np.arange(len(state)) - np.repeat(np.cumsum(count) - count, count)
            piece = alive[place + np.repeat(begins[byte], count)]
            target = self._next[state, data[piece, 0]]
            for j in range(1, data.shape[1] + 1):
                hit, same, done = self._matches[target], target == trail[piece, j], lengths[piece] == j
                kept = hit | (done & ~same)
                arcs.append(np.stack([state, ids[piece], np.where(hit, -1, target)], 1)[kept])
                more = ~(hit | same | done)
                if not more.any():
                    break
                state, piece, target = state[more], piece[more], target[more]
                target = self._next[target, data[piece, j]]
        return np.concatenate(arcs) + np.array([0, first, 0])


text_automaton = lru_cache(maxsize=16)(TextAutomaton)


class TextTrie:
    """The trie of texts as pieces, whose arcs are the only ones that may be generated (De Cao et al. 2021).

    A state is a beginning of a text; 0 is the empty one.
    """

    def __init__(self, texts: Iterable[Sequence[int]], end: int):
        self._next: dict[tuple[int, int], int] = {}
        ends = set()
        for pieces in texts:
            state = 0
            for piece in pieces:
                state = self._next.setdefault((state, piece), len(self._next) + 1)
            ends.add(state)
        arcs = [(state, piece, after) for (state, piece), after in self._next.items()]
        self._arcs = np.array([*arcs, *((state, end, 0) for state in sorted(ends))], np.int64).reshape(-1, 3)

    def after(self, pieces: Sequence[int]) -> int:
        """Return the state after the beginning of a text."""
        state = 0
        for piece in pieces:
            state = self._next[state, piece]
        return state

    def inputs(self, start: int) -> np.ndarray:
        """Return the arcs (A, 3) for a text that begins in this state."""
        return np.concatenate([np.array([[start, SPECIALS.index(PAD), 0]]), self._arcs])


def stack_arcs(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Return the arcs of each text (A', 3) as one array, (1, A, 3) if they are equal, else (B, A, 3) padded with 0."""
    if all(np.array_equal(row, rows[0]) for row in rows):
        return rows[0][None]
    most = max(map(len, rows))
    return np.stack([np.pad(row, ((0, most - len(row)), (0, 0))) for row in rows])
