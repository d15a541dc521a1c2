"""The checks of tokenizers: reproducible, without custom code, with offsets that point at the text."""

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

TRAINS, DATA, SPECIAL = "trains a tokenizer", "everything is in tokenizer.json", "special tokens have ids 0 to 3"
OFFSETS, WORDS_AGREE, SAME_VOCABULARY = "offsets point at the text", "words and whole text agree", "determinism"

TRAINING_TEXTS = (
    "Ada met Bo in Oslo .",
    "In 2024, née x-y: 19.5 %",
    "播放周杰伦的歌 now",
    "It's a well-known fact, isn't it?",
    "ÉCOLE école İstanbul ﬁne ½ cup",
    "thumbs 👍🏽 up 👨‍👩‍👧 and e\u0301",
    "  blanks \t and\nlines  ",
    "Ada in Oslo and Ada in Oslo",
)
UNSEEN_TEXTS = ("Zoë unseen Ω 你好", "🙂", "ADA oslo", "a" * 200)

_TRAINS_FIX = (
    "`train(self, texts)` gets texts and lists of words and returns a tokenizers.Tokenizer; seqpipe.plugin.word_level "
    "builds one with one id per token"
)
_DATA_FIX = (
    "Use only normalizers, pre-tokenizers, models and decoders of the `tokenizers` library, and no custom Python: a "
    "runtime in another language has only tokenizer.json"
)
_SPECIAL_FIX = f"Begin the vocabulary with {' '.join(SPECIALS)}, as seqpipe.plugin.word_level does"
_OFFSETS_FIX = (
    "A normalizer that maps one code point to several (lower case of İ) gives two tokens the same offsets. Use NFC, "
    "NFD, NFKC, NFKD, Replace and Lowercase, and a splitter that drops white space. Pieces of words may share one code "
    "point (its bytes), and those of white space have none; they too must be in order"
)
_WORDS_FIX = (
    "A word of a text that is already split is looked up with the normalizer only, without pre-tokenizer and model: "
    "use a vocabulary of whole words without position markers (▁, Ġ, ##), and normalise in `tokenizer.normalizer`, not "
    "in `train`"
)
_PIECES_FIX = (
    "A word of a text that is already split is encoded by itself, with the space before it if there is one: its pieces "
    "must depend on nothing else (no added prefix: add_prefix_space=False, prepend_scheme='never')"
)
_SEED_FIX = "Sort the vocabulary by count, then by token, not by the order of a set or by random numbers"


def tokenizer_checks(subject: Subject) -> list[Check]:
    checks = _TokenizerChecks(subject)
    return [
        *option_checks(subject),
        import_check(subject),
        Check(TRAINS, checks.trains, _TRAINS_FIX, (ROUND_TRIP,)),
        Check(SAME_VOCABULARY, checks.twice, _SEED_FIX, (TRAINS,)),
        Check(SPECIAL, checks.specials, _SPECIAL_FIX, (TRAINS,)),
        Check(DATA, checks.is_data, _DATA_FIX, (TRAINS,)),
        Check(OFFSETS, checks.offsets, _OFFSETS_FIX, (TRAINS, SPECIAL, DATA)),
        Check(WORDS_AGREE, checks.words, _WORDS_FIX, (TRAINS, SAME_VOCABULARY, SPECIAL, DATA)),
        access_check(subject, checks.trained, TRAINS),
    ]


class _TokenizerChecks:
    """The checks of one tokenizer."""

    def __init__(self, subject: Subject):
        self.subject = subject

    def trained(self) -> Tokenizer:
        """Return a tokenizer trained on every text three times, so that a small min_count keeps some words."""
        return construct(self.subject.cls, **self.subject.chosen).train([*TRAINING_TEXTS] * 3)

    def trains(self) -> None:
        tokenizer = self.trained()
        if not isinstance(tokenizer, Tokenizer):
            raise FaultError(f"`train` returns {type(tokenizer).__name__}, not a tokenizers.Tokenizer")
        if not any(tokenizer.encode(text, add_special_tokens=False).ids for text in TRAINING_TEXTS):
            raise FaultError("it splits none of its training texts")

    def twice(self) -> None:
        first, second = (self.trained().get_vocab() for _ in range(2))
        if first != second:
            raise FaultError("trained twice on the same texts, it has different vocabularies")

    def specials(self) -> None:
        tokenizer = self.trained()
        ids = {token: tokenizer.token_to_id(token) for token in SPECIALS}
        if list(ids.values()) != list(range(len(SPECIALS))):
            raise FaultError(f"the ids of the special tokens are {ids}")

    def is_data(self) -> None:
        tokenizer = self.trained()
        loaded = Tokenizer.from_str(tokenizer.to_str())
        for text in (*TRAINING_TEXTS, *UNSEEN_TEXTS):
            before, after = (each.encode(text, add_special_tokens=False) for each in (tokenizer, loaded))
            if (before.ids, before.offsets) != (after.ids, after.offsets):
                raise FaultError(f"{text!r} is {after.tokens} after saving and loading, not {before.tokens}")
            if tokenizer.decode(before.ids) != loaded.decode(after.ids):
                raise FaultError(f"{text!r} is decoded differently after saving and loading")

    def docs(self) -> Iterator[Doc]:
        featurizer = TextSource(self.trained(), {})
        yield from featurizer.docs([{"text": text} for text in (*TRAINING_TEXTS, *UNSEEN_TEXTS)])

    def offsets(self) -> None:
        for doc in self.docs():
            end = 0
            for word, (a, b) in zip(doc.words, doc.offsets, strict=True):
                shared = doc.starts is not None and a == end - 1  # bytes of a code point in two pieces
                without_characters = doc.starts is not None and a == b  # white space before a word, or its marker
                if not (end - shared <= a and end <= b <= len(doc.text) and (a < b or without_characters)):
                    raise FaultError(f"a token of {doc.text!r} spans {a} to {b}, but the one before it ends at {end}")
                if not word.strip() and len(word) > 1:
                    raise FaultError(f"a token of {doc.text!r} is only white space: {word!r}")
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
                    raise FaultError(f"{word!r} is {tokens[0]!r} in a text, and {tokens[1]!r} as a separate word")
        split = [doc.words for doc in featurizer.docs([{"text": text} for text in TRAINING_TEXTS])]
        again: Tokenizer = construct(self.subject.cls, **self.subject.chosen).train(split * 3)
        if again.get_vocab() != tokenizer.get_vocab():
            odd = sorted(again.get_vocab().keys() ^ tokenizer.get_vocab().keys())[:5]
            raise FaultError(f"trained on its own words, it has another vocabulary: {odd}")

    def pieces(self, featurizer: TextSource) -> None:
        """Check that a text split into words has the pieces of the whole text."""
        for doc in self.docs():
            words = [doc.text[a:b] for a, b in doc.word_offsets]
            (split,) = featurizer.docs([{"words": words, "text": doc.text}])
            if (split.ids, split.starts) != (doc.ids, doc.starts):
                raise FaultError(f"{doc.text!r} is {doc.words}, but split into words {split.words}", _PIECES_FIX)
