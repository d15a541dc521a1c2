"""The checks of tokenizers: reproducible, data alone, with offsets that point at the text."""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import Tokenizer

from seqpipe.config.signature import construct
from seqpipe.features.document import Doc
from seqpipe.features.sources import TextSource
from seqpipe.features.splitting import splits_words
from seqpipe.features.vocabulary import SPECIALS
from seqpipe.testing.isolation import access_check, import_check
from seqpipe.testing.report import ROUND_TRIP, Check, FaultError, Subject, option_checks

TRAINS, DATA, SPECIAL = "learns a tokenizer", "everything is in tokenizer.json", "special tokens have ids 0 to 3"
OFFSETS, WORDS, SEEDS = "offsets point at the text", "words and whole text agree", "determinism"

TEXTS = (
    "Ada met Bo in Oslo .",
    "In 2024, née x-y: 19.5 %",
    "播放周杰伦的歌 now",
    "It's a well-known fact, isn't it?",
    "ÉCOLE école İstanbul ﬁne ½ cup",
    "thumbs 👍🏽 up 👨‍👩‍👧 and e\u0301",
    "  blanks \t and\nlines  ",
    "Ada in Oslo and Ada in Oslo",
)
UNSEEN = ("Zoë unseen Ω 你好", "🙂", "ADA oslo", "a" * 200)

_TRAINS = (
    "`train(self, texts)` gets texts and lists of words and returns a tokenizers.Tokenizer; seqpipe.plugin.word_level "
    "makes one with one id a token"
)
_DATA = (
    "Say everything with the normalizers, pre-tokenizers, models and decoders of the `tokenizers` library, none of "
    "them custom Python: a runtime in any language has tokenizer.json alone"
)
_SPECIAL = f"Begin the vocabulary with {' '.join(SPECIALS)}, as seqpipe.plugin.word_level does"
_OFFSETS = (
    "One code point stays one: a normalizer that makes several of one (lower case of İ) gives two tokens one place. "
    "Use NFC, NFD, NFKC, NFKD, Replace and Lowercase, and a splitter that drops blanks. Pieces of words may share one "
    "code point, as its bytes do, and those of white space have none; they too stand in order"
)
_WORDS = (
    "A word that is split already is looked up through the normalizer alone, without pre-tokenizer and model: a "
    "vocabulary of whole words without signs of position (▁, Ġ, ##), and normalisation in `tokenizer.normalizer`, not "
    "in `train`"
)
_PIECES = (
    "A word of a text that is split already is encoded by itself, with the blank before it where there is one: let the "
    "pieces of a word depend on nothing else (no prefix of its own: add_prefix_space=False, prepend_scheme='never')"
)
_SEEDS = (
    "Order the vocabulary by what is in the texts (by count, then by the token), not by a set's order or random numbers"
)


def tokenizer_checks(subject: Subject) -> list[Check]:
    checks = _TokenizerChecks(subject)
    return [
        *option_checks(subject),
        import_check(subject),
        Check(TRAINS, checks.trains, _TRAINS, (ROUND_TRIP,)),
        Check(SEEDS, checks.twice, _SEEDS, (TRAINS,)),
        Check(SPECIAL, checks.specials, _SPECIAL, (TRAINS,)),
        Check(DATA, checks.is_data, _DATA, (TRAINS,)),
        Check(OFFSETS, checks.offsets, _OFFSETS, (TRAINS, SPECIAL, DATA)),
        Check(WORDS, checks.words, _WORDS, (TRAINS, SEEDS, SPECIAL, DATA)),
        access_check(subject, checks.trained, TRAINS),
    ]


class _TokenizerChecks:
    """The checks of one tokenizer."""

    def __init__(self, subject: Subject):
        self.subject = subject

    def trained(self) -> Tokenizer:
        """Trained on every text three times, so that a small min_count leaves something."""
        return construct(self.subject.cls, **self.subject.chosen).train([*TEXTS] * 3)

    def trains(self) -> None:
        tokenizer = self.trained()
        if not isinstance(tokenizer, Tokenizer):
            raise FaultError(f"`train` returns {type(tokenizer).__name__}, no tokenizers.Tokenizer", _TRAINS)
        if not any(tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS):
            raise FaultError("it splits none of the texts that it has learned from", _TRAINS)

    def twice(self) -> None:
        first, second = (self.trained().get_vocab() for _ in range(2))
        if first != second:
            raise FaultError("trained twice on the same texts it has another vocabulary", _SEEDS)

    def specials(self) -> None:
        tokenizer = self.trained()
        ids = {token: tokenizer.token_to_id(token) for token in SPECIALS}
        if list(ids.values()) != list(range(len(SPECIALS))):
            raise FaultError(f"the ids of the special tokens are {ids}", _SPECIAL)

    def is_data(self) -> None:
        tokenizer = self.trained()
        loaded = Tokenizer.from_str(tokenizer.to_str())
        for text in (*TEXTS, *UNSEEN):
            before, after = (each.encode(text, add_special_tokens=False) for each in (tokenizer, loaded))
            if (before.ids, before.offsets) != (after.ids, after.offsets):
                raise FaultError(f"{text!r} is {after.tokens} after saving and loading, not {before.tokens}", _DATA)
            if tokenizer.decode(before.ids) != loaded.decode(after.ids):
                raise FaultError(f"{text!r} is written otherwise after saving and loading", _DATA)

    def docs(self) -> Iterator[Doc]:
        featurizer = TextSource(self.trained(), {})
        yield from featurizer.docs([{"text": text} for text in (*TEXTS, *UNSEEN)])

    def offsets(self) -> None:
        for doc in self.docs():
            end = 0
            for word, (a, b) in zip(doc.words, doc.offsets, strict=True):
                shared = doc.starts is not None and a == end - 1  # a code point whose bytes are in two pieces
                without_characters = doc.starts is not None and a == b  # white space before a word, or a sign for it
                if not (end - shared <= a and end <= b <= len(doc.text) and (a < b or without_characters)):
                    raise FaultError(
                        f"a token of {doc.text!r} stands from {a} to {b}, the one before it ends at {end}", _OFFSETS
                    )
                if not word.strip() and len(word) > 1:
                    raise FaultError(f"a token of {doc.text!r} is nothing but blanks: {word!r}", _OFFSETS)
                end = b

    def words(self) -> None:
        tokenizer = self.trained()
        featurizer = TextSource(tokenizer, {})
        if splits_words(tokenizer):
            self.pieces(featurizer)
            return
        for doc in self.docs():
            (alone,) = featurizer.docs([{"words": doc.words}]) if doc.words else (doc,)
            for word, id_in_text, id_alone in zip(doc.words, doc.ids, alone.ids, strict=True):
                if id_in_text != id_alone:
                    tokens = [tokenizer.id_to_token(i) for i in (id_in_text, id_alone)]
                    raise FaultError(
                        f"{word!r} is {tokens[0]!r} in a text, and {tokens[1]!r} as a word of its own", _WORDS
                    )
        split = [doc.words for doc in featurizer.docs([{"text": text} for text in TEXTS])]
        again: Tokenizer = construct(self.subject.cls, **self.subject.chosen).train(split * 3)
        if again.get_vocab() != tokenizer.get_vocab():
            odd = sorted(again.get_vocab().keys() ^ tokenizer.get_vocab().keys())[:5]
            raise FaultError(f"trained on its own words it has another vocabulary: {odd}", _WORDS)

    def pieces(self, featurizer: TextSource) -> None:
        """A text whose words are given has the pieces of the text."""
        for doc in self.docs():
            words = [doc.text[a:b] for a, b in doc.word_offsets]
            (split,) = featurizer.docs([{"words": words, "text": doc.text}])
            if (split.ids, split.starts) != (doc.ids, doc.starts):
                raise FaultError(f"{doc.text!r} is {doc.words}, and with its words given {split.words}", _PIECES)
