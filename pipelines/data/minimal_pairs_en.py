"""English sentences with agreement, selection, reference and polarity, and minimal pairs of them."""

from collections.abc import Callable
from typing import Any

from dice import Combinations
from words_en import choices

MEN = choices("boy boys; king kings; uncle uncles; brother brothers; prince princes; father fathers")
WOMEN = choices("girl girls; queen queens; aunt aunts; sister sisters; princess princesses; mother mothers")
PEOPLE = choices("pilot pilots; farmer farmers; singer singers; guest guests")
NOUNS = MEN + WOMEN + PEOPLE
THINGS = choices("lamp lamps; key keys; book books; cup cups; letter letters; box boxes; clock clocks; coat coats")
ACTIONS = choices("sleeps sleep; laughs laugh; waits wait; sings sing; works work; smiles smile; rests rest; runs run")
SEES = choices("sees see; knows know; likes like; helps help; admires admire; hears hear; trusts trust; draws draw")
DETERMINERS = choices("this; that; these; those")
NEAR = choices("near; behind; beside; opposite")
FEELS = choices("tired; happy; late; hungry")
SUBJECTS_OF = [  # verbs that select their subject: these nouns, and no others of this list
    (
        "reigns reign; governs govern; abdicates abdicate; commands command",
        "ruler rulers; king kings; queen queens; emperor emperors",
    ),
    (
        "writes write; leaks leak; smudges smudge; scratches scratch",
        "pen pens; pencil pencils; brush brushes; marker markers",
    ),
    ("grazes graze; trots trot; chews chew; kicks kick", "horse horses; goat goats; donkey donkeys; cow cows"),
    ("rings ring; sounds sound; buzzes buzz; blares blare", "bell bells; alarm alarms; phone phones; siren sirens"),
]
SELECTION = [(choices(verbs), choices(nouns)) for verbs, nouns in SUBJECTS_OF]
REFERENCE = [  # a verb, its subjects and objects, and the properties of each that give a reason
    (
        "does not fit into",
        (choices("trophy; statue; violin; helmet; globe; vase"), choices("too big; too wide; too long; too thick")),
        (
            choices("suitcase; drawer; cupboard; bag; chest; crate"),
            choices("too small; too narrow; too short; too flat"),
        ),
    ),
    (
        "does not eat",
        (choices("cat; dog; rabbit; hamster; parrot; mouse"), choices("full; tired; ill; frightened")),
        (choices("fish; apple; carrot; cheese; biscuit; berry"), choices("rotten; frozen; sour; burnt")),
    ),
]
SINGULAR, PLURAL = 0, 1


def sentence(draw: Combinations) -> str:
    """A sentence of one of twelve forms, in either number."""
    dice, number = draw.dice, draw.dice.below(2)
    noun, action = draw.pair(NOUNS, ACTIONS)
    owner, sees = draw.pair(NOUNS, SEES)
    modifier = f"{dice.pick(NEAR)} the {form(dice.pick(NOUNS), dice.below(2))}"
    forms: list[Callable[[], str]] = [
        lambda: f"the {form(noun, number)} {form(action, number)} .",
        lambda: f"the {form(noun, number)} already {form(action, number)} .",
        lambda: f"no {form(noun, number)} ever {form(action, number)} .",
        lambda: f"the {form(noun, number)} {modifier} {form(action, number)} .",
        lambda: f"the {form(noun, number)} {relative_clause(draw, dice.below(2))} {form(action, number)} .",
        lambda: f"the {form(owner, number)} {form(sees, number)} {thing(draw)} .",
        lambda: f"the {form(owner, number)} {form(sees, number)} {reflexive(owner, number, draw)} .",
        lambda: f"the {form(owner, number)} {modifier} {form(sees, number)} {reflexive(owner, number, draw)} .",
        lambda: f"the {form(noun, number)} {form(action, number)} because {pronoun(noun, number, draw)} .",
        lambda: f"the {form(noun, number)} {modifier} {form(action, number)} because {pronoun(noun, number, draw)} .",
        lambda: selection(draw)["sentence_good"],
        lambda: reference(draw)[1],
    ]
    return dice.pick(forms)()


def form(word: str, number: int) -> str:
    """A noun or a verb in its singular or plural form."""
    return word.split()[number]


def relative_clause(draw: Combinations, number: int) -> str:
    """Somebody of this number as the subject of a relative clause."""
    noun, sees = draw.pair(NOUNS, SEES)
    return f"that the {form(noun, number)} {form(sees, number)}"


def thing(draw: Combinations) -> str:
    """A determiner and a thing of its number."""
    item, determiner = draw.pair(THINGS, DETERMINERS)
    return f"{determiner} {form(item, number_of(determiner))}"


def number_of(determiner: str) -> int:
    return PLURAL if determiner in ("these", "those") else SINGULAR


def reflexive(noun: str, number: int, draw: Combinations) -> str:
    """The reflexive pronoun of a noun; either of the singular ones where the noun has no gender."""
    if number == PLURAL:
        return "themselves"
    return "himself" if is_man(noun, draw) else "herself"


def pronoun(noun: str, number: int, draw: Combinations) -> str:
    """The pronoun of a noun as the subject of how somebody feels."""
    feels = draw.dice.pick(FEELS)
    if number == PLURAL:
        return f"they are {feels}"
    return f"{'he' if is_man(noun, draw) else 'she'} is {feels}"


def is_man(noun: str, draw: Combinations) -> bool:
    return noun in MEN or (noun in PEOPLE and draw.dice.chance(0.5))


# -- the pairs


def pair(good: str, bad: str) -> dict[str, Any]:
    return {"sentence_good": good, "sentence_bad": bad}


def subject_verb(draw: Combinations) -> dict[str, Any]:
    (noun, action), number = draw.pair(NOUNS, ACTIONS), draw.dice.below(2)
    subject = f"the {form(noun, number)}"
    return pair(f"{subject} {form(action, number)} .", f"{subject} {form(action, 1 - number)} .")


def attractor(draw: Combinations) -> dict[str, Any]:
    (noun, action), number = draw.pair(NOUNS, ACTIONS), draw.dice.below(2)
    subject = f"the {form(noun, number)} {draw.dice.pick(NEAR)} the {form(draw.dice.pick(NOUNS), 1 - number)}"
    return pair(f"{subject} {form(action, number)} .", f"{subject} {form(action, 1 - number)} .")


def across_relative_clause(draw: Combinations) -> dict[str, Any]:
    (noun, action), number = draw.pair(NOUNS, ACTIONS), draw.dice.below(2)
    subject = f"the {form(noun, number)} {relative_clause(draw, 1 - number)}"
    return pair(f"{subject} {form(action, number)} .", f"{subject} {form(action, 1 - number)} .")


def determiner_noun(draw: Combinations) -> dict[str, Any]:
    (noun, sees), number = draw.pair(NOUNS, SEES), draw.dice.below(2)
    item, determiner = draw.pair(THINGS, DETERMINERS)
    start, right = f"the {form(noun, number)} {form(sees, number)} {determiner}", number_of(determiner)
    return pair(f"{start} {form(item, right)} .", f"{start} {form(item, 1 - right)} .")


def reflexive_number(draw: Combinations) -> dict[str, Any]:
    noun, sees = draw.pair(MEN, SEES, NOUNS) if draw.dice.chance(0.5) else draw.pair(WOMEN, SEES, NOUNS)
    number = draw.dice.below(2)
    words = (reflexive(noun, SINGULAR, draw), reflexive(noun, PLURAL, draw))
    start = f"the {form(noun, number)} {form(sees, number)}"
    return pair(f"{start} {words[number]} .", f"{start} {words[1 - number]} .")


def reflexive_gender(draw: Combinations) -> dict[str, Any]:
    noun, sees = draw.pair(MEN, SEES, NOUNS) if draw.dice.chance(0.5) else draw.pair(WOMEN, SEES, NOUNS)
    words = ("himself", "herself") if noun in MEN else ("herself", "himself")
    attractor = draw.dice.pick(WOMEN if noun in MEN else MEN)
    modifier = f"{draw.dice.pick(NEAR)} the {form(attractor, SINGULAR)}"
    start = f"the {form(noun, SINGULAR)} {modifier} {form(sees, SINGULAR)}"
    return pair(f"{start} {words[0]} .", f"{start} {words[1]} .")


def polarity(draw: Combinations) -> dict[str, Any]:
    """Behind "no" stands "ever", and "already" behind "the"."""
    (noun, action), number = draw.pair(NOUNS, ACTIONS), draw.dice.below(2)
    determiner, right, wrong = draw.dice.pick([("no", "ever", "already"), ("the", "already", "ever")])
    start, end = f"{determiner} {form(noun, number)}", f"{form(action, number)} ."
    return pair(f"{start} {right} {end}", f"{start} {wrong} {end}")


def selection(draw: Combinations) -> dict[str, Any]:
    """A verb and a subject that it selects, beside that verb with a subject, or that subject with a verb, of others."""
    dice, number = draw.dice, draw.dice.below(2)
    verbs, nouns = dice.pick(SELECTION)
    other_verbs, other_nouns = dice.pick([entry for entry in SELECTION if entry[0] != verbs])
    noun, verb = draw.pair(nouns, verbs)
    wrong = (noun, dice.pick(other_verbs)) if dice.chance(0.5) else (dice.pick(other_nouns), verb)
    modifier = f"{dice.pick(NEAR)} the {form(dice.pick(other_nouns), dice.below(2))} " if dice.chance(0.5) else ""
    good, bad = (f"the {form(a, number)} {modifier}{form(b, number)} ." for a, b in ((noun, verb), wrong))
    return pair(good, bad)


def reference(draw: Combinations) -> tuple[dict[str, Any], str]:
    """A question for the meaning of "it", known by the reason (Levesque et al. 2012), and the text with its answer."""
    dice = draw.dice
    verb, (subjects, of_subjects), (objects, of_objects) = dice.pick(REFERENCE)
    nouns = draw.pair(subjects, objects)
    meant = dice.below(2)
    reason = dice.pick((of_subjects, of_objects)[meant])
    text = f"the {nouns[0]} {verb} the {nouns[1]} because it is {reason} . it means the [MASK] ."
    alternatives = sorted(nouns)
    question = {"text": text, "alternatives": alternatives, "answer": alternatives.index(nouns[meant])}
    return question, text.replace("[MASK]", nouns[meant])


def pronoun_gender(draw: Combinations) -> dict[str, Any]:
    noun, action = draw.pair(MEN, ACTIONS, NOUNS) if draw.dice.chance(0.5) else draw.pair(WOMEN, ACTIONS, NOUNS)
    text = f"the {form(noun, SINGULAR)} {form(action, SINGULAR)} because [MASK] is {draw.dice.pick(FEELS)} ."
    return {"text": text, "alternatives": ["he", "she", "they"], "answer": 0 if noun in MEN else 1}


PHENOMENA = {
    "subject_verb_agreement": ("agreement", subject_verb),
    "agreement_across_attractor": ("agreement", attractor),
    "agreement_across_relative_clause": ("agreement", across_relative_clause),
    "determiner_noun_agreement": ("agreement", determiner_noun),
    "reflexive_number": ("reference", reflexive_number),
    "reflexive_gender": ("reference", reflexive_gender),
    "pronoun_gender": ("reference", pronoun_gender),
    "polarity": ("polarity", polarity),
    "selection": ("selection", selection),
    "pronoun_reference": ("reference", lambda draw: reference(draw)[0]),
}
