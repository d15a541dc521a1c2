"""English sentences and their German translations to `translation`, the same bytes each time.

A sentence is drawn as what it says, then put in both languages. Its kind is one of `USUAL`; in `test-new-templates` one
of `NEW`, which joins clauses that training has only apart. `translation_words.py` holds the words.
The sentences of `translation-names` have invented names, and those of `test-new-names` are in no other file.
"""

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import translation_words as lexicon
from dice import Dice
from translation_clauses import (
    ASK,
    SPEECH,
    TENSES,
    TRANSITIVE,
    being,
    clause,
    in_tense,
    phrase,
    related,
    somebody,
    time_first,
)
from translation_english import english
from translation_german import german
from translation_phrases import Clause, Phrase, Sentence
from translation_words import PEOPLE

SEED = 20_261_124
SIZES = {"train": 10_000, "dev": 300, "test": 500, "test-new-templates": 500}
NAME_SIZES = {"train": 6_000, "dev": 200, "test": 300, "test-new-names": 500}
SHORTEST, LONGEST = 6, 20  # tokens of a sentence, marks too


def speaker(dice: Dice) -> Phrase:
    return phrase(dice, PEOPLE) if dice.chance(0.5) else somebody(dice)


def same_again(dice: Dice, subject: Phrase) -> Phrase:
    """A pronoun for the subject, if one can tell whom it means; or somebody else."""
    if subject.pronoun or subject.name:
        return Phrase(person=subject.person, pronoun=True)
    assert subject.noun
    if subject.noun.kind in ("man", "woman") and subject.determiner != "every" and dice.chance(0.6):
        return Phrase(subject.noun, number=subject.number, pronoun=True)
    return somebody(dice)


def plain(dice: Dice) -> Sentence:
    return Sentence(time_first(dice, clause(dice, speaker(dice), dice.pick(TENSES))))


def relative_subject(dice: Dice) -> Sentence:
    return Sentence(clause(dice, related(dice, phrase(dice, PEOPLE)), dice.pick(TENSES)))


def related_object(dice: Dice, made: Clause) -> Clause | None:
    """The clause with a relative clause to the object that is last in both languages."""
    if made.direct and made.direct.noun and not made.direct.pronoun and not (made.indirect and made.shift):
        return replace(made, direct=related(dice, made.direct))
    if made.indirect and made.indirect.noun and not made.direct:
        return replace(made, indirect=related(dice, made.indirect))
    return None


def relative_object(dice: Dice) -> Sentence | None:
    made = related_object(dice, clause(dice, speaker(dice), dice.pick(TENSES), adverbs=False))
    return Sentence(made) if made else None


def joined(dice: Dice) -> Sentence:
    """A main clause and a subordinate one, either first."""
    tense, subject = dice.pick(("present", "past")), speaker(dice)
    main = clause(dice, subject, tense)
    second = clause(dice, same_again(dice, subject), tense)
    return Sentence(main, dice.pick(list(lexicon.CONJUNCTIONS)), second, second_first=dice.chance(0.4))


def reported(dice: Dice) -> Sentence:
    """What somebody says, or asks."""
    subject, tense = speaker(dice), dice.pick(("present", "past"))
    ask = dice.chance(0.2)
    main = Clause(subject, ASK if ask else dice.pick(SPEECH), tense)
    second = clause(dice, same_again(dice, subject), dice.pick(TENSES))
    return Sentence(main, "whether" if ask else "that", second)


def referring(dice: Dice) -> Sentence:
    """A thing, and a pronoun for it whose German form its gender decides."""
    kind = dice.pick((*lexicon.THINGS, "door", "food"))
    thing = phrase(dice, (kind,))
    verb = dice.pick([verb for kinds, verb in TRANSITIVE if kind in kinds])
    tense, subject = dice.pick(("present", "past")), speaker(dice)
    main = replace(in_tense(dice, subject, verb, tense), direct=thing)
    it = Phrase(thing.noun, number=thing.number, pronoun=True)
    if dice.chance(0.5):
        return Sentence(main, dice.pick(("because", "although")), being(dice, it, tense))
    verb = dice.pick([verb for kinds, verb in TRANSITIVE if kind in kinds])
    second = replace(in_tense(dice, same_again(dice, subject), verb, tense), direct=it)
    return Sentence(main, dice.pick(("because", "before", "and", "but")), second)


def coordinated(dice: Dice) -> Sentence:
    subject = speaker(dice)
    main = clause(dice, subject, dice.pick(TENSES))
    second = clause(dice, same_again(dice, subject), dice.pick(TENSES))
    return Sentence(main, dice.pick(("and", "but")), second)


def asked(dice: Dice) -> Sentence | None:
    main = clause(dice, speaker(dice), dice.pick(TENSES))
    question = dice.pick(("whether", "whether", "why", "when", "where"))
    again = question == "when" and (main.time[0] or main.frequency[0])
    odd = main.negative or again or (question == "where" and main.place)
    return None if odd else Sentence(main, question=question)


def reported_and_joined(dice: Dice) -> Sentence:
    sentence = reported(dice)
    assert sentence.second
    tense = "past" if sentence.second.tense == "past" else "present"
    return replace(sentence, third=(dice.pick(("because", "although")), clause(dice, somebody(dice), tense)))


def joined_and_relative(dice: Dice) -> Sentence | None:
    sentence = joined(dice)
    made = related_object(dice, sentence.main)
    return replace(sentence, main=made, second_first=True) if made and bare_end(made) else None


def reported_and_relative(dice: Dice) -> Sentence:
    sentence = reported(dice)
    assert sentence.second
    subject = related(dice, phrase(dice, PEOPLE))
    return replace(sentence, second=clause(dice, subject, sentence.second.tense, adverbs=False))


def asked_and_joined(dice: Dice) -> Sentence | None:
    sentence, tense = asked(dice), dice.pick(("present", "past"))
    if sentence is None or sentence.main.tense != tense or sentence.question == "when":
        return None
    return replace(sentence, conjunction=dice.pick(("when", "because")), second=clause(dice, somebody(dice), tense))


def bare_end(made: Clause) -> bool:
    """Whether nothing follows the object."""
    return not (made.time[0] or made.company or made.manner[0] or made.place)


Kind = Callable[[Dice], Sentence | None]
USUAL: tuple[Kind, ...] = (
    *(plain, relative_subject, relative_object, joined, joined, reported, referring, referring, coordinated, asked),
)
NEW: tuple[Kind, ...] = (reported_and_joined, joined_and_relative, reported_and_relative, asked_and_joined)


def fits(text: str) -> bool:
    return SHORTEST <= len(re.findall(r"\w+|[^\w\s]", text)) <= LONGEST


def corpus() -> dict[str, list[tuple[str, str]]]:
    """The pairs of each file; no sentence of either language stands twice."""
    dice = Dice(SEED)
    used: set[str] = set()
    files: dict[str, list[tuple[str, str]]] = {}
    for file, size in SIZES.items():
        pairs = files[file] = []
        while len(pairs) < size:
            sentence = dice.pick(NEW if file == "test-new-templates" else USUAL)(dice)
            if sentence is None:
                continue
            pair = english(sentence), german(sentence)
            if used.isdisjoint(pair) and fits(pair[0]) and fits(pair[1]):
                used.update(pair)
                pairs.append(pair)
    return files


def invented_name(dice: Dice, gender: str) -> str:
    """A name of two or three syllables; those of women end in a vowel, those of men in a consonant."""
    syllables = [dice.pick("bdfghjklmnprstvwz") + dice.pick("aeiou") for _ in range(2 + dice.below(2))]
    return "".join(syllables).capitalize() + ("a" if gender == "f" else dice.pick("klnrst"))


def names_corpus() -> dict[str, list[tuple[str, str]]]:
    """The pairs of each file, all with a name; the names of `test-new-names` are in no other file."""
    dice, used, old = Dice(SEED + 1), set[str](), set[str]()
    known = [(name, gender) for gender, names in lexicon.NAMES.items() for name in names]
    pool = {gender: [invented_name(dice, gender) for _ in range(2_000)] for gender in lexicon.NAMES}
    files: dict[str, list[tuple[str, str]]] = {}
    for file, size in NAME_SIZES.items():
        pairs = files[file] = []
        while len(pairs) < size:
            sentence = dice.pick(USUAL)(dice)
            pair = (english(sentence), german(sentence)) if sentence else ("", "")
            genders = {name: gender for name, gender in known if re.search(rf"\b{name}\b", pair[0])}
            if not genders or not used.isdisjoint(pair) or not (fits(pair[0]) and fits(pair[1])):
                continue
            used.update(pair)
            new = {}
            for name, gender in genders.items():
                new[name] = dice.pick(pool[gender])
                while file == "test-new-names" and new[name] in old:
                    new[name] = invented_name(dice, gender)
            if len({*new.values()}) == len(new):
                old.update(new.values() if file != "test-new-names" else ())
                for name, other in new.items():
                    pair = re.sub(rf"\b{name}\b", other, pair[0]), re.sub(rf"\b{name}\b", other, pair[1])
                pairs.append(pair)
    return files


def main() -> None:
    """Write the files of both folders."""
    parser = argparse.ArgumentParser(description="Write English sentences and their German translations.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    out = parser.parse_args().out
    for folder, files in ((out / "translation", corpus()), (out / "translation-names", names_corpus())):
        folder.mkdir(parents=True, exist_ok=True)
        for file, pairs in files.items():
            rows = (json.dumps({"text": text, "target": target}, ensure_ascii=False) for text, target in pairs)
            (folder / f"{file}.jsonl").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
