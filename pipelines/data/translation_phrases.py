"""What a sentence of the translation data says, before it is put in a language."""

from __future__ import annotations

from dataclasses import dataclass

from translation_words import Adjective, Noun, Verb

SINGULAR, PLURAL = "singular", "plural"
PERSONS = {  # English nominative and accusative, German nominative, accusative and dative
    "I": ("I", "me", "ich", "mich", "mir"),
    "you": ("you", "you", "du", "dich", "dir"),
    "we": ("we", "us", "wir", "uns", "uns"),
    "m": ("he", "him", "er", "ihn", "ihm"),
    "f": ("she", "her", "sie", "sie", "ihr"),
    "plural": ("they", "them", "sie", "sie", "ihnen"),
}
BE = {"I": ("am", "was", "bin", "war"), "you": ("are", "were", "bist", "warst"), "we": ("are", "were", "sind", "waren")}
BE |= dict.fromkeys("mfn", ("is", "was", "ist", "war")) | {"plural": ("are", "were", "sind", "waren")}


@dataclass(frozen=True)
class Phrase:
    """A noun phrase: a noun with what belongs to it, a name, or a pronoun for a person or a noun."""

    noun: Noun | None = None
    determiner: str = ""
    number: str = SINGULAR
    adjectives: tuple[Adjective, ...] = ()
    relative: Relative | None = None
    name: str = ""
    person: str = ""  # of a pronoun or a name: a key of FORMS
    pronoun: bool = False

    @property
    def agreement(self) -> str:
        """The gender, or `plural`, or the person: what articles, verbs and pronouns agree with."""
        if self.noun is None:
            return self.person
        return "plural" if self.number == PLURAL else self.noun.gender


@dataclass(frozen=True)
class Clause:
    """Who does what: `tense` is past, present, future or a modal verb."""

    subject: Phrase
    verb: Verb | None  # None: to be
    tense: str
    direct: Phrase | None = None  # accusative
    indirect: Phrase | None = None  # dative
    time: tuple[str, str] = ("", "")
    time_first: bool = False
    frequency: tuple[str, str] = ("", "")
    manner: tuple[str, str] = ("", "")
    place: tuple[str, str, Phrase] | None = None  # English and German preposition, its phrase in the dative
    company: tuple[str, str, str, Phrase] | None = None  # the same with the German case: with whom, for whom
    negative: bool = False
    predicate: tuple[Adjective, bool] | None = None  # of to be; whether it is *very* so
    modal: tuple[str, ...] = ()
    shift: bool = False  # *gives the book to the child* in place of *gives the child the book*


@dataclass(frozen=True)
class Relative:
    """A relative clause: in `clause` the noun's own phrase is the one that stands at `role`."""

    clause: Clause
    role: str  # subject, direct, indirect


@dataclass(frozen=True)
class Sentence:
    """A main clause, with what is joined to it."""

    main: Clause
    conjunction: str = ""  # and, but: `second` is a main clause; otherwise a subordinate one
    second: Clause | None = None
    second_first: bool = False
    question: str = ""  # whether, why, when, where
    third: tuple[str, Clause] | None = None  # one more subordinate clause


def written(words: list[str], mark: str) -> str:
    """The sentence with its first letter in upper case, without blanks before marks and without doubled marks."""
    text = " ".join([*words, mark]).replace(" ,", ",")
    while ",," in text:
        text = text.replace(",,", ",")
    text = text.replace(f", {mark}", mark).replace(f" {mark}", mark)
    return text[0].upper() + text[1:]
