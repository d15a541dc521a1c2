"""A grammar of tagged words to `treebank`: English sentences with their parts of speech, the same bytes each time."""

import argparse
import re
from pathlib import Path

from dice import Dice
from words_en import DEALT, choices

SEED = 20_240_505
SIZES = {"train": 1200, "dev": 250, "test": 350, "test-new-templates": 350}
PARTS = ("train", "dev", "test")

# Words that are of one kind, dealt out: 60 % to train, 10 % to dev, 30 % to test; dev and test use train's as well.
WORDS = {
    "NOUN": """teacher garden window river station bridge kitchen village doctor engine letter picture market farmer
        forest lawyer candle bottle ticket carpet basket ladder hammer island castle soldier painter driver writer
        singer baker station nation invention collection direction election question attention reaction solution
        mention darkness kindness weakness illness sadness happiness fitness movement agreement payment government
        statement apartment ability activity city quantity society university neighbour visitor editor actor builder
        reader owner manager mountain airport hospital library museum theatre harbour lantern blanket pillow mirror
        cupboard drawer violin journey holiday morning evening winter summer minute moment century freedom wisdom
        kingdom friendship leadership membership childhood neighbourhood package luggage message village cottage
        bandage""",
    "VERB": """admire describe follow carry destroy deliver discover remember forget believe explain describe improve
        celebrate decorate investigate separate translate demonstrate organise recognise realise memorise apologise
        criticise simplify identify notify justify verify widen shorten strengthen sharpen loosen frighten examine
        imagine determine consider deliver gather bother suffer whisper borrow swallow follow accept adopt arrest
        assist attend avoid build bring catch choose defend deny divide enjoy expect forgive greet hide ignore
        invite join kick lend lift marry observe obtain offend persuade prefer prepare prevent protect prove provide
        pursue receive reduce refuse reject repeat require rescue respect satisfy select send solve support surprise
        threaten throw""",
    "ADJ": """careful useful peaceful wonderful helpful hopeful painful beautiful cheerful grateful careless useless
        endless hopeless homeless famous dangerous nervous generous curious serious mysterious jealous active creative
        expensive attractive massive positive negative massive basic magic historic romantic scientific domestic
        visible possible terrible horrible flexible reliable comfortable valuable suitable acceptable local national
        practical musical typical central natural funny happy heavy hungry lucky noisy rainy sleepy thirsty old
        young small large tall strange brave clever gentle simple purple quiet rough smooth thick thin wide narrow
        proud""",
    "ADV": """quickly slowly carefully quietly loudly gladly sadly badly nicely politely bravely eagerly happily
        angrily easily heavily luckily rarely hardly nearly barely suddenly secretly proudly warmly firmly gently
        calmly often never always sometimes soon again together everywhere somewhere yesterday today tomorrow
        tonight""",
}
# Words of several kinds: only what stands around them tells.
MIXED = {
    "BOTH": """play watch light train cook water order park run walk fish plant hand face book note call answer visit
        drink dream help hope plan paint name point reply report rest result return rule sail search shout sign sleep
        smile sound start step stop study talk taste test touch trade travel treat turn use vote wait wish work form
        guess guide""",
    "BETWEEN": "light open clean cool warm dry empty slow calm clear free narrow dim tame smooth",  # ADJ or VERB
}
RULES: dict[str, list[str]] = {
    "det": ["the/DET", "the/DET", "a/DET", "this/DET", "that/DET", "every/DET", "some/DET", "no/DET", "her/PRON",
            "his/PRON", "their/PRON", "my/PRON"],
    "dets": ["the/DET", "the/DET", "these/DET", "those/DET", "some/DET", "all/DET", "two/NUM", "seven/NUM",
            "forty/NUM", "our/PRON"],
    "adj": ["{ADJ}/ADJ", "{ADJ}/ADJ", "{BETWEEN}/ADJ", "very/ADV {ADJ}/ADJ", "{ADJ}/ADJ and/CCONJ {ADJ}/ADJ"],
    "noun": ["{NOUN}/NOUN", "{NOUN}/NOUN", "{BOTH}/NOUN", "{BOTH}/NOUN", "can/NOUN", "will/NOUN", "back/NOUN"],
    "nouns": ["{NOUN}s/NOUN", "{NOUN}s/NOUN", "{BOTH}s/NOUN", "{BOTH}s/NOUN"],
    "name": ["{given}/PROPN", "{given}/PROPN", "{given}/PROPN {family}/PROPN", "{town}/PROPN"],
    "one": ["<det> <noun>", "<det> <noun>", "<det> <adj> <noun>", "<name>", "<name>",
            "<det> <noun> <prep> <det> <noun>"],
    "many": ["<dets> <nouns>", "<dets> <nouns>", "<dets> <adj> <nouns>", "<name> and/CCONJ <name>", "<nouns>",
            "they/PRON", "we/PRON", "you/PRON"],
    "any": ["<one>", "<one>", "<dets> <nouns>", "him/PRON", "her/PRON", "it/PRON", "them/PRON"],
    "prep": ["in/ADP", "on/ADP", "near/ADP", "behind/ADP", "of/ADP", "with/ADP", "like/ADP", "to/ADP", "past/ADP",
            "by/ADP"],
    "verb": ["{VERB}/VERB", "{VERB}/VERB", "{BOTH}/VERB", "{BOTH}/VERB", "{BETWEEN}/VERB", "like/VERB", "have/VERB"],
    "verbs": ["{VERB}s/VERB", "{BOTH}s/VERB", "{BOTH}s/VERB", "likes/VERB", "has/VERB"],
    "aux": ["can/AUX", "will/AUX", "must/AUX", "should/AUX", "may/AUX", "might/AUX"],
    "where": ["<prep> <one>", "<prep> <one>", "back/ADV", "up/ADV", "{ADV}/ADV", "{ADV}/ADV", "there/ADV"],
    "say": ["say/VERB that/SCONJ", "believe/VERB that/SCONJ", "know/VERB that/SCONJ", "hope/VERB"],
    "link": ["because/SCONJ", "when/SCONJ", "while/SCONJ", "if/SCONJ", "although/SCONJ", "and/CCONJ", "but/CCONJ",
            "or/CCONJ"],
}  # fmt: skip
CLAUSES = {
    "train": choices("""
        <one> <verbs> <any>; <one> <verbs> <any>; <many> <verb> <any>; <many> <verb> <any>; <one> <aux> <verb> <any>;
        <many> <aux> <verb> <any> <where>; <one> <verbs> <where>; <many> <verb> <any> <where>; <one> is/AUX <adj>;
        <many> are/AUX <adj>; <one> has/VERB <one>; <many> <aux> not/PART <verb> <any>;
        <many> <say> <one> <verbs> <any>; <one> wants/VERB to/PART <verb> <any>;
        <many> have/VERB to/PART <verb> <any>; <one> does/AUX not/PART <verb> <any>;
        <many> do/AUX not/PART <verb> <where>; there/PRON is/VERB <one> <where>;
        <one> <verbs> <any> and/CCONJ <verbs> <any>"""),
    "new": choices("""
        <verb> <any> <where>; {ADV}/ADV <many> <verb> <any>; does/AUX <one> <verb> <any>; <aux> <many> <verb> <any>;
        who/PRON <verbs> <any>; to/PART <verb> <any> is/AUX <adj>; <one> that/PRON <verbs> <any> is/AUX <adj>;
        do/AUX not/PART <verb> <any>; <one> and/CCONJ <one> <verb> <any>; let/VERB us/PRON <verb> <any>;
        <prep> <one> <many> <verb> <any>; <one> is/AUX <one>; <many> <verb> and/CCONJ <verb> <where>"""),
}
LINKED = 0.25  # share of sentences of two clauses


def deal(dice: Dice) -> dict[str, dict[str, list[str]]]:
    """The words of each part: of those of dev and test, half are train's."""
    hands: dict[str, dict[str, list[str]]] = {part: {} for part in PARTS}
    lists = {kind: list(dict.fromkeys(words.split())) for kind, words in WORDS.items()}
    mixed = {kind: words.split() for kind, words in MIXED.items()}
    for kind, words in {**lists, **{rule: DEALT[rule] for rule in ("given", "family", "town")}}.items():
        cards = dice.shuffled(sorted({*words} - {*mixed["BOTH"], *mixed["BETWEEN"]}))
        first, second = round(len(cards) * 0.6), round(len(cards) * 0.7)
        hands["train"][kind] = cards[:first]
        hands["dev"][kind] = cards[first:second] * 6 + cards[:first]
        hands["test"][kind] = cards[second:] * 2 + cards[:first]
    return {part: {**hand, **mixed} for part, hand in hands.items()}


def clause(template: str, hand: dict[str, list[str]], dice: Dice) -> list[tuple[str, str]]:
    """One template to its words with their tags."""
    while found := re.search(r"<(\w+)>", template):
        template = template[: found.start()] + dice.pick(RULES[found[1]]) + template[found.end() :]
    template = re.sub(r"\{(\w+)\}", lambda found: dice.pick(hand[found[1]]), template)
    words = [(form, tag) for form, _, tag in (piece.rpartition("/") for piece in template.split())]
    return [(inflected(form, tag, words[i + 1 : i + 2]), tag) for i, (form, tag) in enumerate(words)]


def inflected(form: str, tag: str, after: list[tuple[str, str]]) -> str:
    """`an` before a vowel; -es and -ies where a word ends so."""
    if (form, tag) == ("a", "DET") and after and after[0][0][0] in "aeio":
        return "an"
    if tag in ("NOUN", "VERB") and form.endswith("s"):
        form = re.sub(r"([^aeiou])ys$", r"\1ies", form)
        form = re.sub(r"(s|x|z|ch|sh)s$", r"\1es", form)
    return form


def sentence(templates: list[str], hand: dict[str, list[str]], dice: Dice) -> list[tuple[str, str]]:
    """One or two clauses and a last mark."""
    first = dice.pick(templates)
    words = clause(first, hand, dice)
    if dice.chance(LINKED):
        link = clause("<link>", hand, dice)
        comma = [(",", "PUNCT")] if link[0][1] == "CCONJ" or dice.chance(0.4) else []
        words += [*comma, *link, *clause(dice.pick(CLAUSES["train"]), hand, dice)]
    asks = first.split()[0] in ("does/AUX", "who/PRON", "<aux>")
    words = [(words[0][0][0].upper() + words[0][0][1:], words[0][1]), *words[1:]]
    return [*words, ("?" if asks else "!" if dice.chance(0.05) else ".", "PUNCT")]


def conllu(number: int, words: list[tuple[str, str]]) -> str:
    """One sentence as CoNLL-U: no blank before a mark; lemma, features and tree are not given."""
    text = re.sub(r" ([.,?!])", r"\1", " ".join(form for form, _ in words))
    lines = [f"# sent_id = {number}", f"# text = {text}"]
    for i, (form, tag) in enumerate(words):
        glued = i + 1 < len(words) and words[i + 1][1] == "PUNCT"
        lines.append("\t".join([str(i + 1), form, "_", tag, *"_____", "SpaceAfter=No" if glued else "_"]))
    return "\n".join(lines) + "\n\n"


def corpus() -> dict[str, str]:
    """The text of each file; no sentence stands twice."""
    dice = Dice(SEED)
    hands = deal(dice)
    used: set[str] = set()
    files: dict[str, str] = {}
    for file, size in SIZES.items():
        new = file == "test-new-templates"
        made: list[str] = []
        while len(made) < size:
            words = sentence(CLAUSES["new" if new else "train"], hands["test" if new else file], dice)
            key = " ".join(form.lower() for form, _ in words)
            if key not in used:
                used.add(key)
                made.append(conllu(len(made) + 1, words))
        files[file] = "".join(made)
    return files


def main() -> None:
    """Write the four files."""
    parser = argparse.ArgumentParser(description="Write the treebank.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    folder = parser.parse_args().out / "treebank"
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in corpus().items():
        (folder / f"{file}.conllu").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
