"""The English of a sentence of the translation data."""

from translation_phrases import BE, PERSONS, PLURAL, SINGULAR, Clause, Phrase, Sentence, written


def english_phrase(phrase: Phrase, case: str = "nominative") -> list[str]:
    if phrase.pronoun:
        if phrase.noun is not None and phrase.number == SINGULAR and phrase.noun.kind not in ("man", "woman"):
            return ["it"]
        return [PERSONS[phrase.agreement][case != "nominative"]]
    if phrase.noun is None:
        return [phrase.name]
    noun = phrase.noun.en_plural if phrase.number == PLURAL else phrase.noun.en
    words = [*(adjective.en for adjective in phrase.adjectives), *noun.split()]
    determiner = phrase.determiner
    if determiner == "a" and (words[0][0] in "aeiou" or words[0] == "honest") and words[0] != "useful":
        determiner = "an"
    if determiner == "this" and phrase.number == PLURAL:
        determiner = "these"
    words = [determiner, *words] if determiner else words
    return words + (english_relative(phrase) if phrase.relative else [])


def english_relative(phrase: Phrase) -> list[str]:
    relative, noun = phrase.relative, phrase.noun
    assert relative
    assert noun
    human = noun.kind in ("man", "woman", "child")
    pronoun = "which" if not human else "who" if relative.role == "subject" else "whom"
    return [pronoun, *english_clause(relative.clause, without=relative.role)]


def english_verb(clause: Clause) -> tuple[list[str], list[str]]:
    """The auxiliary, with *not*, and the main verb; the first is empty where a full verb is finite."""
    who = clause.subject.agreement
    denial = ["not"] if clause.negative else []
    third = who in ("m", "f", "n")
    if clause.verb is None:
        return [BE[who][clause.tense == "past"], *denial], []
    base, present, past = clause.verb.en
    if clause.tense == "future":
        return ["will", *denial], base.split()
    if clause.tense == "modal":
        if clause.modal[0] != "want":
            return ["cannot"] if denial and clause.modal[0] == "can" else [clause.modal[0], *denial], base.split()
        base, present, past = f"want to {base}", f"wants to {base}", ""
    if denial:
        do = "did" if clause.tense == "past" else "does" if third else "do"
        return [do, "not"], base.split()
    finite = past if clause.tense == "past" else present if third else base
    return [], finite.split()


def english_clause(clause: Clause, *, without: str = "", question: bool = False) -> list[str]:
    """The words of a clause; in a relative one without the phrase that the relative pronoun is for."""
    auxiliary, verb = english_verb(clause)
    if question and not auxiliary:
        third, wants = clause.subject.agreement in ("m", "f", "n"), clause.tense == "modal"
        assert clause.verb
        base = clause.verb.en[0].split()
        auxiliary = ["did" if clause.tense == "past" else "does" if third else "do"]
        verb = ["want", "to", *base] if wants else base
    subject = [] if without == "subject" else english_phrase(clause.subject)
    often = clause.frequency[0].split()
    words = [*auxiliary, *subject, *often] if question else [*subject, *auxiliary, *often]
    words += english_objects(clause, verb, without)
    if clause.predicate:
        adjective, very = clause.predicate
        words += ["very", adjective.en] if very else [adjective.en]
    if clause.company:
        words += [clause.company[0], *english_phrase(clause.company[3], "accusative")]
    if clause.place:
        words += [clause.place[0], *english_phrase(clause.place[2], "accusative")]
    words += clause.manner[0].split()
    time = clause.time[0].split()
    return [*time, *words] if clause.time_first else [*words, *time]


def english_objects(clause: Clause, verb: list[str], without: str) -> list[str]:
    direct = english_phrase(clause.direct, "accusative") if clause.direct and without != "direct" else []
    indirect = english_phrase(clause.indirect, "accusative") if clause.indirect and without != "indirect" else []
    if clause.verb and clause.verb.prepositional:
        return [*verb, *indirect, *direct]
    if clause.direct and clause.direct.pronoun and direct and clause.verb and " " in clause.verb.en[0]:
        return [*verb[:-1], *direct, verb[-1]]  # picks it up
    if without == "indirect" and clause.direct:
        return [*verb, *direct, "to"]
    if clause.shift and direct and indirect:
        return [*verb, *direct, "to", *indirect]
    return [*verb, *indirect, *direct]


def english(sentence: Sentence) -> str:
    if sentence.question:
        asked = [] if sentence.question == "whether" else [sentence.question]
        words = [*asked, *english_clause(sentence.main, question=True)]
    else:
        words = english_clause(sentence.main)
    if sentence.second:
        joined = [sentence.conjunction, *english_clause(sentence.second)]
        if sentence.second_first:
            words = [*joined, ",", *words]
        else:
            words += [",", *joined] if sentence.conjunction == "but" else joined
    if sentence.third:
        words += [sentence.third[0], *english_clause(sentence.third[1])]
    return written(words, "?" if sentence.question else ".")
