"""Drawn phrases and clauses of the translation data."""

from collections.abc import Sequence
from dataclasses import replace

import translation_words as lexicon
from dice import Dice
from translation_phrases import PLURAL, SINGULAR, Clause, Phrase, Relative
from translation_words import PEOPLE, Noun, Verb

NOUNS, ADJECTIVES = lexicon.nouns(), lexicon.adjectives()
TRANSITIVE = [(kinds, verb) for kinds, lines in lexicon.TRANSITIVE.items() for verb in lexicon.verbs(lines)]
DATIVE, DITRANSITIVE = lexicon.verbs(lexicon.DATIVE), lexicon.verbs(lexicon.DITRANSITIVE)
INTRANSITIVE, RETURN = lexicon.verbs(lexicon.INTRANSITIVE), lexicon.verbs(lexicon.RETURN)
MOTION, SPEECH = lexicon.verbs(lexicon.MOTION), lexicon.verbs(lexicon.SPEECH)
ASK = next(verb for _, verb in TRANSITIVE if verb.en[0] == "ask")
MY = ("my", "your", "his", "her", "our", "their")
SINGULAR_DETERMINERS = ("the", "the", "the", "the", "a", "a", "a", "this", "every", *MY[:3], *MY[3:])
PLURAL_DETERMINERS = ("the", "the", "the", "", "", "this", "some", "many", "two", "three", "four", *MY)
TENSES = ("present", "present", "present", "past", "past", "past", "future", "modal")


# -- phrases


def phrase(dice: Dice, kinds: Sequence[str], *, plural: bool = True) -> Phrase:
    """A noun of one of these kinds with its article, adjectives and number."""
    return described(dice, dice.pick([noun for kind in kinds for noun in NOUNS[kind]]), plural=plural)


def described(dice: Dice, noun: Noun, *, plural: bool = True) -> Phrase:
    shuffled = dice.shuffled(ADJECTIVES[lexicon.ADJECTIVES_OF[noun.kind]])
    adjectives = tuple(shuffled[: dice.pick((0, 0, 0, 1, 1, 1, 2))])
    if {adjective.en for adjective in adjectives} in lexicon.OPPOSITES:
        adjectives = adjectives[:1]
    if noun.en_plural == "-":
        return Phrase(noun, dice.pick(("", "", "the", "this", *MY)), SINGULAR, adjectives)
    number = PLURAL if plural and dice.chance(0.3) else SINGULAR
    return Phrase(noun, dice.pick(PLURAL_DETERMINERS if number == PLURAL else SINGULAR_DETERMINERS), number, adjectives)


def somebody(dice: Dice) -> Phrase:
    """A pronoun, a name or a phrase for a person."""
    if dice.chance(0.25):
        return Phrase(person=dice.pick(("I", "you", "we", "m", "f", "plural")), pronoun=True)
    if dice.chance(0.15):
        gender = dice.pick(("m", "f"))
        return Phrase(name=dice.pick(lexicon.NAMES[gender]), person=gender)
    return phrase(dice, PEOPLE)


def somebody_else(dice: Dice, subject: Phrase) -> Phrase:
    """An object that is not the subject: no reflexive verbs."""
    other = somebody(dice)
    while (other.pronoun and subject.pronoun) or (other.name and other.name == subject.name):
        other = somebody(dice)
    return other


# -- clauses


def clause(dice: Dice, subject: Phrase, tense: str, *, adverbs: bool = True) -> Clause:
    """A clause of any verb with this subject."""
    made = dice.pick((transitive, transitive, transitive, dative, ditransitive, intransitive, motion, being))(
        dice, subject, tense
    )
    return with_adverbs(dice, made) if adverbs else made


def in_tense(dice: Dice, subject: Phrase, verb: Verb | None, tense: str) -> Clause:
    modal = dice.pick(lexicon.MODALS) if tense == "modal" else ()
    return Clause(subject, verb, tense, modal=modal)


def transitive(dice: Dice, subject: Phrase, tense: str) -> Clause:
    kinds, verb = dice.pick(TRANSITIVE)
    kind = dice.pick(kinds)
    direct = somebody_else(dice, subject) if kind in PEOPLE else phrase(dice, (kind,))
    return replace(in_tense(dice, subject, verb, tense), direct=direct)


def dative(dice: Dice, subject: Phrase, tense: str) -> Clause:
    return replace(in_tense(dice, subject, dice.pick(DATIVE), tense), indirect=somebody_else(dice, subject))


def ditransitive(dice: Dice, subject: Phrase, tense: str) -> Clause:
    made = in_tense(dice, subject, dice.pick(DITRANSITIVE), tense)
    direct = phrase(dice, (*lexicon.THINGS, "animal"))
    return replace(made, direct=direct, indirect=somebody_else(dice, subject), shift=dice.chance(0.4))


def intransitive(dice: Dice, subject: Phrase, tense: str) -> Clause:
    if dice.chance(0.2):
        return in_tense(dice, subject, dice.pick(RETURN), tense)
    made = in_tense(dice, subject, dice.pick(INTRANSITIVE), tense)
    place = ("in", "in", phrase(dice, ("place", "room"), plural=False))
    return replace(made, place=place) if dice.chance(0.6) else made


def motion(dice: Dice, subject: Phrase, tense: str) -> Clause:
    place = ("to", "zu", phrase(dice, ("place",), plural=False))
    return replace(in_tense(dice, subject, dice.pick(MOTION), tense), place=place)


def being(dice: Dice, subject: Phrase, tense: str) -> Clause:
    kind = lexicon.ADJECTIVES_OF[subject.noun.kind] if subject.noun else "person"
    taken = {adjective.en for adjective in subject.adjectives}
    fitting = [one for one in ADJECTIVES[kind] if one.en not in taken]
    adjective = dice.pick([one for one in fitting if all({one.en, word} not in lexicon.OPPOSITES for word in taken)])
    past = "past" if tense == "past" else "present"
    return replace(Clause(subject, None, past), predicate=(adjective, dice.chance(0.5)))


def with_adverbs(dice: Dice, made: Clause) -> Clause:
    """The clause with a negation, an adverb or whom it is done with, or as it is."""
    when = "future" if made.tense == "modal" else made.tense
    drawn = dice.below(10)
    if drawn < 2 and not (made.tense == "modal" and made.modal[0] in ("must", "may")):
        return replace(made, negative=True) if can_be_negative(made) else made
    if drawn < 5:
        return replace(made, time=dice.pick(lexicon.TIMES[when]))
    if drawn == 5 and made.tense in ("present", "past"):
        return replace(made, frequency=dice.pick(lexicon.FREQUENCIES))
    if drawn == 6 and made.direct and made.direct.noun and made.direct.noun.kind not in PEOPLE and not made.indirect:
        preposition = dice.pick((("with", "mit", "dative"), ("for", "für", "accusative")))
        return replace(made, company=(*preposition, phrase(dice, PEOPLE)))
    if drawn == 7 and made.verb in MOTION:
        return replace(made, manner=dice.pick(lexicon.MANNERS))
    return made


def can_be_negative(made: Clause) -> bool:
    """Whether *nicht* has one place and one reach: it is not said of some, many or every."""
    counted = ("some", "many", "two", "three", "four", "every")
    definite = made.indirect is None or made.indirect.determiner not in ("a", "", *counted) or not made.indirect.noun
    phrases = [phrase for phrase in (made.subject, made.direct, made.indirect) if phrase]
    return definite and all(phrase.determiner not in counted for phrase in phrases)


def time_first(dice: Dice, made: Clause) -> Clause:
    return replace(made, time_first=True) if made.time[0] and dice.chance(0.6) else made


def related(dice: Dice, head: Phrase) -> Phrase:
    """The phrase with a relative clause, in which it is the subject or an object."""
    assert head.noun
    kind, tense = head.noun.kind, dice.pick(TENSES)
    bare = Phrase(head.noun, "the", head.number, head.adjectives)
    choices: list[Clause] = []
    if kind in PEOPLE:
        choices += [clause(dice, bare, tense, adverbs=dice.chance(0.3))]
        choices += [replace(in_tense(dice, somebody(dice), dice.pick(DATIVE), tense), indirect=bare)]
    else:
        choices += [being(dice, bare, tense)]
    fitting = [verb for kinds, verb in TRANSITIVE if kind in kinds]
    if fitting:
        choices += [replace(in_tense(dice, somebody(dice), dice.pick(fitting), tense), direct=bare)]
    made = dice.pick(choices)
    role = "subject" if made.subject is bare else "direct" if made.direct is bare else "indirect"
    return replace(head, relative=Relative(made, role))
