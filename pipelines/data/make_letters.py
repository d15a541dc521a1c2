"""Sentences and word lists to `letters`: letters to a shop, one wish each among much else, the same bytes each
time."""

import argparse
import json
import re
from pathlib import Path

from dice import Dice
from make_assistant import expand, tidy
from words_en import choices

SEED = 20_240_504
SIZES = {"train": 500, "dev": 150, "test": 250, "test-new-templates": 250}
SHORTEST, LONGEST = 4, 9  # sentences a letter
RARE = 0.15  # share of sentences in a rare manner

RULES: dict[str, list[str]] = {
    "item": choices("""
        kettle; lamp; jacket; tent; blender; keyboard; backpack; mattress; carpet; toaster; bicycle; radio; printer;
        desk; coat; camera; headset; rucksack; heater; shelf; mirror; drill; watch; chair; phone; scooter; vase;
        piano; sofa"""),
    "who": choices("""
        my neighbour; a friend of mine; my brother; my aunt; a colleague; the man next door; my cousin; our landlord;
        somebody at work; my daughter; an old friend"""),
    "when": ["last year", "some time ago", "in spring", "back then", "years ago", "at another shop", "last summer"],
    "colour": ["red", "green", "blue", "grey", "white", "yellow", "brown", "black"],
    "day": ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday"],
    # what is done with each wish: the same words stand in the wish and in what others did
    "refund": ["the money back", "a full refund", "the price returned", "a cheque over the price"],
    "replace": ["a new one", "another one instead", "a replacement", "a working one in exchange"],
    "cancel": ["a cancellation", "a stop to the delivery", "an end to the contract", "the order called off"],
    "repair": ["a repair", "the broken part mended", "a visit by the mechanic", "the old switch fixed"],
    "ask": [
        "I would like",
        "please may I have",
        "I am writing to get",
        "I must ask for",
        "what I want is",
        "I still wait for",
    ],
    "wish": choices("""
        <ask> {}; <ask> {} by <day>; by <day> <ask> {}; and so <ask> {}; I can only accept {}; could you arrange {};
        {} is all I ask for; nothing but {} will do; my wish is {}; I asked for {} and I still do"""),
    "wish_rare": choices("""
        would {} be possible; let me have {}; I hope for {} now; what about {}; I insist on {}; {} is what I need;
        there is one thing I want: {}"""),
    "others": choices("""
        <who> got {} <when>; <who> wanted {} for a <item> <when>; <when> <who> was given {}; I do not want {};
        I never asked for {} before; <who> says one always gets {}; your advertisement promises {};
        <who> was refused {} <when>; {} is not what I ask for; nobody needs {} here; at first I asked for {};
        I cannot accept {}; <who> would like {}; by <day> <who> still waited for {}; my first wish was {};
        {} was all <who> asked for <when>"""),
    "others_rare": choices("""
        {} is the last thing I need; <who> insists on {}; would <who> want {}; I hoped for {} <when>; let us forget {};
        <who> had one wish: {}; {} is no longer what I want"""),
    "wish_new": choices("""
        all I ask is {}; do send {}; I am after {}; I wish for {}; {} would make me happy; I want {} at last"""),
    "others_new": choices("""
        <who> is after {}; do not send {}; <who> wishes for {}; {} would make <who> happy;
        it was <when> that I wanted {}; nobody wants {}"""),
    "chat": choices("""
        the weather has been [dreadful|lovely|mild|cold] here; I bought the <item> on <day>; the <item> is <colour>;
        <who> has a <colour> <item> too; your shop is easy to find; the parcel came on <day>; I was at home all <day>;
        the box was <colour>; we have used the <item> every day; <who> told me about your shop;
        I have been a customer for [two|five|ten|twenty] years; the driver was [kind|late|in a hurry|friendly];
        it stands in the [kitchen|hall|garden|office] now; the manual is [long|short|missing|in french];
        it makes a strange noise; the <item> stopped working on <day>; I tried it on <day> and again on <day>;
        the <item> looks smaller than in the picture; <who> could not help me; I hope that you are well;
        we moved to [another town|a bigger flat|the coast] <when>; the bill is in the box; I paid by card;
        nobody answered the phone on <day>; I do not understand page [two|six|nine]"""),
}
WISHES = ("refund", "replace", "cancel", "repair")


def sentence(rule: str, wish: str, dice: Dice) -> str:
    """One sentence, of the wish where the rule has a place for one."""
    text = tidy(expand(f"<{rule}>", RULES, dice))
    text = tidy(expand(text.replace("{}", f"<{wish}>"), RULES, dice))
    return text[0].upper() + text[1:] + dice.pick([".", ".", ".", ".", "!"])


def manner(rule: str, new: bool, dice: Dice) -> str:
    """The list that a sentence comes from: of a rule, its rare ones, or those of test-new-templates."""
    return rule + ("_new" if new else "_rare" if dice.chance(RARE) else "")


def letter(wish: str, new: bool, dice: Dice) -> str:
    """Some sentences in a drawn order: one or two with the wish, some with what is not wished, the rest talk."""
    length = SHORTEST + dice.below(LONGEST - SHORTEST + 1)
    other = [one for one in WISHES if one != wish]
    said = [sentence(manner("wish", new, dice), wish, dice) for _ in range(2 if dice.chance(0.15) else 1)]
    said += [sentence(manner("others", new, dice), dice.pick(other), dice) for _ in range(1 + dice.below(3))]
    while len(said) < length:
        one = sentence("chat", wish, dice)
        said += [] if key(one) in map(key, said) else [one]
    return " ".join(dice.shuffled(said))


def key(text: str) -> str:
    """What letters share that differ in case or marks only."""
    return " ".join(re.findall(r"\w+", text.lower()))


def corpus() -> dict[str, list[dict[str, str]]]:
    """The letters of each file; none stands twice."""
    dice = Dice(SEED)
    used: set[str] = set()
    files: dict[str, list[dict[str, str]]] = {}
    for file, size in SIZES.items():
        rows: list[dict[str, str]] = []
        while len(rows) < size:
            wish = dice.pick(WISHES)
            text = letter(wish, file == "test-new-templates", dice)
            if key(text) not in used:
                used.add(key(text))
                rows.append({"text": text, "label": wish})
        files[file] = rows
    return files


def main() -> None:
    """Write the four files."""
    parser = argparse.ArgumentParser(description="Write the letters.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    folder = parser.parse_args().out / "letters"
    folder.mkdir(parents=True, exist_ok=True)
    for file, rows in corpus().items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{file}.jsonl").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
