"""The translation data: no sentence stands twice, and its German agrees, by rules and genders written down here."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly("pipelines/data/*", "tests/demo_data/*")

DATA = Path(__file__).parents[2] / "pipelines" / "data" / "translation"
SIZES = {"train": 10_000, "dev": 300, "test": 500, "test-new-templates": 500}
NOUNS = {  # whose singular and plural differ
    "m": "Hund Brief Roman Tisch Stuhl Ball Ring Hut Mantel Rock Apfel Vogel Park Wald Sohn Gast",
    "f": "Katze Zeitung Lampe Uhr Tasche Tür Suppe Jacke Kamera Maschine Blume Kuh Frau Schule",
    "n": "Pferd Buch Gedicht Auto Boot Bett Bild Hemd Kleid Ei Tor Haus Schloss Kind Radio Paket",
}
GENDERS = {noun: gender for gender, names in NOUNS.items() for noun in names.split()}
ENDINGS = {  # gender: article: the ending of the adjectives behind it
    "m": {"der": "e", "den": "en", "dem": "en", "ein": "er", "einen": "en", "einem": "en"},
    "f": {"die": "e", "der": "en", "eine": "e", "einer": "en"},
    "n": {"das": "e", "dem": "en", "ein": "es", "einem": "en"},
}
FINITE = (
    "hat haben habe hast wird werden werde wirst kann kannst können muss musst müssen darf darfst dürfen will willst"
)
SUBORDINATE = r"\b(?:weil|obwohl|dass|ob|wenn|als|während|bevor) ([^,.?]*)"


@cache
def pairs(part: str) -> list[tuple[str, str]]:
    rows = map(json.loads, (DATA / f"{part}.jsonl").read_text(encoding="utf-8").splitlines())
    return [(row["text"], row["target"]) for row in rows]


def everything() -> Iterator[tuple[str, str]]:
    for part in SIZES:
        yield from pairs(part)


def noun_phrases(text: str) -> Iterator[tuple[str, list[str], str]]:
    """Article, adjectives and noun of each phrase with a noun of `GENDERS`; relative pronouns are left out."""
    articles = "|".join({article for endings in ENDINGS.values() for article in endings})
    for article, adjectives, noun in re.findall(rf"(?<!, )\b({articles})((?: [a-zäöüß]+)*) ([A-ZÄÖÜ]\w+)", text):
        if noun in GENDERS and all(word[-1] in "enrs" for word in adjectives.split()):
            yield article, adjectives.split(), noun


def agrees(article: str, adjectives: list[str], noun: str) -> bool:
    ending = ENDINGS[GENDERS[noun]].get(article)
    return ending is not None and all(word.endswith(ending) for word in adjectives)


def tangled(text: str) -> int:
    """Number of clauses of an English sentence beside its main clause, and True for a question."""
    words = re.findall(r"\w+", re.sub(r"^(When|Why|Where)(?= .*\?$)", "", text).lower())
    joined = ("because", "although", "when", "while", "before", "that", "whether", "who", "whom", "which")
    return sum(words.count(word) for word in joined) + text.endswith("?")


def test_no_sentence_stands_twice_in_either_language() -> None:
    assert {part: len(pairs(part)) for part in SIZES} == SIZES
    for language in zip(*everything(), strict=True):
        assert len({*language}) == sum(SIZES.values())


def test_sentences_have_6_to_20_tokens_and_every_english_word_is_in_training() -> None:
    for side in (0, 1):
        lengths = [len(re.findall(r"\w+|[^\w\s]", pair[side])) for pair in everything()]
        assert (min(lengths), max(lengths)) == (6, 20)
        known = {word for pair in pairs("train") for word in re.findall(r"\w+", pair[side])}
        assert len(known) > 700
        words = [word for pair in pairs("test") for word in re.findall(r"\w+", pair[side])]
        assert sum(word not in known for word in words) <= len(words) / 1000


def test_the_new_templates_join_clauses_that_training_has_only_apart() -> None:
    assert {tangled(text) for part in ("train", "dev", "test") for text, _ in pairs(part)} == {0, 1}
    assert {tangled(text) for text, _ in pairs("test-new-templates")} == {2}


def test_articles_and_adjectives_agree_with_the_gender_of_the_noun() -> None:
    phrases = [phrase for _, target in everything() for phrase in noun_phrases(target)]
    assert len(phrases) > 1200
    assert [phrase for phrase in phrases if not agrees(*phrase)] == []
    assert sum(bool(adjectives) for _, adjectives, _ in phrases) > 600


def test_a_planted_wrong_article_or_ending_is_found() -> None:
    for wrong in ("Das Lampe ist alt.", "Er kauft das rote Lampe.", "Er liest einen alte Brief."):
        text = wrong[0].lower() + wrong[1:]
        assert [phrase for phrase in noun_phrases(text) if not agrees(*phrase)]


def test_a_finite_auxiliary_is_the_last_word_of_a_subordinate_clause() -> None:
    clauses = [found for _, target in everything() for found in re.findall(SUBORDINATE, target.lower())]
    finite = [found.split() for found in clauses if {*found.split()} & {*FINITE.split()}]
    assert len(finite) > 1000
    behind = [words for words in finite if words[-1] not in FINITE.split()]
    assert [words for words in behind if "und" not in words and "aber" not in words] == []


def test_a_pronoun_has_the_gender_of_the_thing_it_is_for() -> None:
    expected = {"m": ("er", "ihn"), "f": ("sie", "sie"), "n": ("es", "es")}
    seen = []
    for text, target in pairs("train"):
        if re.search(r"\b(because|although) it (is|was)\b", text):
            before, pronoun = re.findall(r"^(.*), (?:weil|obwohl) (\w+)", target)[0]
            noun = re.findall(r"[A-ZÄÖÜ]\w+", before)[-1]
            if noun in GENDERS:
                seen.append(pronoun)
                assert pronoun == expected[GENDERS[noun]][0], target
    assert {*seen} == {"er", "sie", "es"}
    assert len(seen) > 60


def test_verbs_agree_with_the_person_that_stands_first() -> None:
    special = {"bin", "war", "kann", "muss", "darf", "will", "weiß"}
    checks = {
        "Ich": lambda verb: verb.endswith("e") or verb in special,
        "Du": lambda verb: verb.endswith(("st", "sst")),
    }
    checks["Wir"] = lambda verb: verb.endswith("n") or verb == "sind"
    for person, check in checks.items():
        verbs = {found for _, target in everything() for found in re.findall(rf"^{person} (\w+)", target)}
        assert len(verbs) > 20
        odd = {verb for verb in verbs if not check(verb)}
        assert odd <= {"liest", "übersetzt", "grüßt", "putzt", "tanzt", "weißt"}, person


def test_verbs_with_a_dative_object_and_separable_particles_are_as_grammars_have_them() -> None:
    helped = [target for text, target in everything() if re.search(r"\bhelp(s|ed)? the (\w+ )?(boy|son|guest)\b", text)]
    assert len(helped) > 3
    assert all(re.search(r"\bdem (\w+en )?(Jungen|Sohn|Gast)\b", target) for target in helped)
    called = [target for _, target in everything() if re.search(r"\b[Rr]uf(e|st|t|en)\b", target)]
    assert len(called) > 20
    assert all(re.search(r"\b[Rr]uf(e|st|t|en)\b.* an\b", target) for target in called)
