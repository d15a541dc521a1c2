"""The German of a sentence of the translation data.

It differs where a word-by-word translation fails: the finite verb is second in a main clause and last in a subordinate
one; participles, infinitives and separable particles stand at the end; articles and adjectives agree with the gender,
the number and the case of the noun, which English does not show; so do pronouns and relative pronouns.
"""

from translation_phrases import BE, PERSONS, PLURAL, Clause, Phrase, Sentence, written
from translation_words import CONJUNCTIONS

FORMS = {"I": 0, "you": 1, "m": 2, "f": 2, "n": 2, "we": 3, "plural": 3}  # of a German verb
HAVE, ARE = ("habe", "hast", "hat", "haben"), ("bin", "bist", "ist", "sind")
WILL = ("werde", "wirst", "wird", "werden")

CASES = ("nominative", "accusative", "dative")
ARTICLES = {
    "m": ("der", "den", "dem"),
    "f": ("die", "die", "der"),
    "n": ("das", "das", "dem"),
    "plural": ("die", "die", "den"),
}
STRONG = {"m": ("er", "en", "em"), "f": ("e", "e", "er"), "n": ("es", "es", "em"), "plural": ("e", "e", "en")}
EIN = STRONG | {"m": ("", "en", "em"), "n": ("", "", "em")}
WEAK = {"m": ("e", "en", "en"), "f": ("e", "e", "en"), "n": ("e", "e", "en"), "plural": ("en", "en", "en")}
MIXED = WEAK | {"m": ("er", "en", "en"), "n": ("es", "es", "en")}
EIN_STEMS = {"a": "ein", "no": "kein", "my": "mein", "your": "dein", "his": "sein", "her": "ihr"}
EIN_STEMS |= {"our": "unser", "their": "ihr"}
DER_STEMS = {"this": "dies", "every": "jed"}
UNINFLECTED = {"two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "": ""}
STRONG_STEMS = {"some": "einig", "many": "viel"}
CONTRACTIONS = {("in", "dem"): "im", ("zu", "dem"): "zum", ("zu", "der"): "zur"}


def german_phrase(phrase: Phrase, case: str) -> list[str]:
    at = CASES.index(case)
    if phrase.pronoun:
        if phrase.agreement == "n":
            return [("es", "es", "ihm")[at]]
        return [PERSONS[phrase.agreement][2 + at]]
    if phrase.noun is None:
        return [phrase.name]
    noun, agreement = phrase.noun, phrase.agreement
    determiner, endings = german_determiner(phrase.determiner, agreement, at)
    adjectives = [adjective.stem + endings[agreement][at] for adjective in phrase.adjectives]
    if phrase.number == PLURAL:
        word = noun.de_plural + ("n" if case == "dative" and noun.de_plural[-1] not in "ns" else "")
    else:
        word = noun.de + (noun.weak if case != "nominative" else "")
    return [*([determiner] if determiner else []), *adjectives, word]


def german_determiner(determiner: str, agreement: str, at: int) -> tuple[str, dict[str, tuple[str, str, str]]]:
    """The article or what stands for it, and the endings of adjectives behind it."""
    if determiner == "the":
        return ARTICLES[agreement][at], WEAK
    if determiner in DER_STEMS:
        return DER_STEMS[determiner] + STRONG[agreement][at], WEAK
    if determiner in EIN_STEMS:
        return EIN_STEMS[determiner] + EIN[agreement][at], MIXED
    if determiner in STRONG_STEMS:
        return STRONG_STEMS[determiner] + STRONG[agreement][at], STRONG
    return UNINFLECTED[determiner], STRONG


def german_relative(phrase: Phrase) -> list[str]:
    """The relative clause, behind its comma."""
    assert phrase.relative
    case = {"subject": "nominative", "direct": "accusative", "indirect": "dative"}[phrase.relative.role]
    agreement = phrase.agreement
    pronoun = "denen" if (agreement, case) == ("plural", "dative") else ARTICLES[agreement][CASES.index(case)]
    return [",", pronoun, *german_last(phrase.relative.clause, without=phrase.relative.role), ","]


def german_subject(phrase: Phrase) -> list[str]:
    return german_phrase(phrase, "nominative") + (german_relative(phrase) if phrase.relative else [])


def german_verb(clause: Clause) -> tuple[str, list[str]]:
    """The finite verb, and what of the verb stands at the end of a main clause."""
    form, verb = FORMS[clause.subject.agreement], clause.verb
    if verb is None:
        return BE[clause.subject.agreement][2 + (clause.tense == "past")], []
    if clause.tense == "past":
        return (HAVE if verb.auxiliary == "haben" else ARE)[form], [verb.particle + verb.participle]
    infinitive = verb.particle + verb.de[3]
    if clause.tense == "future":
        return WILL[form], [infinitive]
    if clause.tense == "modal":
        return clause.modal[1 + form], [infinitive]
    return verb.de[form], [verb.particle] if verb.particle else []


def german_middle(clause: Clause, *, without: str = "", subject: bool, time: bool) -> list[str]:
    """What stands between the finite verb and the end, in the order of the middle field."""
    words = german_subject(clause.subject) if subject and without != "subject" else []
    objects = [("accusative", clause.direct, "direct"), ("dative", clause.indirect, "indirect")]
    present = [(case, phrase) for case, phrase, role in objects if phrase and role != without]
    words += [word for case, phrase in present if phrase.pronoun for word in german_phrase(phrase, case)]
    words += clause.time[1].split() if time else []
    words += clause.frequency[1].split()
    if clause.company:
        words += [clause.company[1], *german_phrase(clause.company[3], clause.company[2])]
    kein = False
    for case, phrase in reversed(present):
        if not phrase.pronoun:
            if clause.negative and case == "accusative" and phrase.determiner in ("", "a") and phrase.noun:
                kein, phrase = True, Phrase(phrase.noun, "no", phrase.number, phrase.adjectives)
            words += german_phrase(phrase, case)
    words += ["nicht"] if clause.negative and not kein else []
    words += clause.manner[1].split()
    if clause.place:
        _, preposition, phrase = clause.place
        words += contracted([preposition, *german_phrase(phrase, "dative")])
    if clause.predicate:
        adjective, very = clause.predicate
        words += ["sehr", adjective.de] if very else [adjective.de]
    return words


def contracted(words: list[str]) -> list[str]:
    """*im Garten* for *in dem Garten*."""
    both = CONTRACTIONS.get((words[0], words[1]))
    return [both, *words[2:]] if both else words


def german_behind(clause: Clause) -> list[str]:
    """The relative clause of an object, which stands behind the end of its clause."""
    phrases = [clause.indirect, clause.direct, clause.place[2] if clause.place else None]
    return next((german_relative(phrase) for phrase in phrases if phrase and phrase.relative), [])


def german_last(clause: Clause, without: str = "") -> list[str]:
    """A clause with the finite verb at its end, as behind a conjunction or a relative pronoun."""
    finite, end = german_verb(clause)
    middle = german_middle(clause, without=without, subject=True, time=True)
    verbs = [end[0] + finite] if clause.tense == "present" and end else [*end, finite]
    return [*middle, *verbs, *german_behind(clause)]


def german_second(clause: Clause, *, first: bool = False) -> list[str]:
    """A clause with the finite verb second, or first: in a question, or behind something else that stands first."""
    finite, end = german_verb(clause)
    if first:
        middle = german_middle(clause, subject=True, time=True)
        return [finite, *middle, *end, *german_behind(clause)]
    if clause.time_first:
        middle = german_middle(clause, subject=True, time=False)
        return [*clause.time[1].split(), finite, *middle, *end, *german_behind(clause)]
    middle = german_middle(clause, subject=False, time=True)
    return [*german_subject(clause.subject), finite, *middle, *end, *german_behind(clause)]


def german(sentence: Sentence) -> str:
    asked = {"": "", "whether": "", "why": "warum", "when": "wann", "where": "wo"}[sentence.question]
    verb_first = bool(sentence.question) or sentence.second_first
    words = [*([asked] if asked else []), *german_second(sentence.main, first=verb_first)]
    if sentence.second:
        if sentence.conjunction in ("and", "but"):
            words += ["und"] if sentence.conjunction == "and" else [",", "aber"]
            words += german_second(sentence.second)
        else:
            joined = german_subordinate(sentence.conjunction, sentence.second)
            words = [*joined, ",", *words] if sentence.second_first else [*words, ",", *joined]
    if sentence.third:
        words += [",", *german_subordinate(*sentence.third)]
    return written(words, "?" if sentence.question else ".")


def german_subordinate(conjunction: str, clause: Clause) -> list[str]:
    conjunctions = CONJUNCTIONS | {"that": ("dass", "dass"), "whether": ("ob", "ob")}
    return [conjunctions[conjunction][clause.tense == "past"], *german_last(clause)]
