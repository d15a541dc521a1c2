"""Notices of a few sentences and questions about them to `questions`, in the JSON of SQuAD 2.0, the same bytes each
time."""

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dice import Dice
from words_en import DEALT, choices

SEED = 20_240_505
PASSAGES = {"train": 370, "dev": 40, "test": 60, "test-new-templates": 60}
FILLED = 0.3  # share of sentences with one behind them that tells nothing
STOPPED = 0.15  # share of sentences that are the last, though more could be told

Hand = Mapping[str, list[str]]
CLOSED: dict[str, list[str]] = {
    "day": choices("Monday; Tuesday; Wednesday; Thursday; Friday; Saturday; Sunday"),
    "month": choices("January; February; March; May; June; July; September; October; November"),
    "hour": choices("two; three; four; five; six; seven; eight; nine; ten; eleven"),
    "half": choices("; ; half past; a quarter past; a quarter to"),
    "money": choices("euros; pounds; dollars; crowns"),
    "shop": choices("bakery; pharmacy; bookshop; garage; florist; butcher; tailor; hardware store"),
    "thing": choices("""
        wardrobe; sofa; washing machine; bicycle; carpet; printer; bookcase; freezer; piano; mattress; heater; desk"""),
    "room": choices(
        "town hall; library; old school; gym; station; church; cinema; harbour office; museum; market hall"
    ),
    "club": choices("chess club; choir; drama group; sewing circle; walking group; photo club; garden society"),
    "talk": choices("""
        bees; old maps; the moon; wild flowers; trains; first aid; Roman roads; birds of the coast; beer; bridges"""),
    "filler": choices("""
        Please keep the stairs free.; The lift is out of order again.; Dogs have to wait outside.; Bring an umbrella.;
        The gate is locked at night.; Ask at the front desk for a key.; Nobody needs to sign up.;
        The rest can wait."""),
}
# What a notice tells, by its subject: sentences for train and for test-new-templates. {slots} are what is asked for.
TOLD: dict[str, tuple[list[str], list[str]]] = {
    "delivery": (
        choices("""
            The <thing> will be delivered {when} and costs {amount}.; The driver, {who}, brings the <thing> {when}.;
            Delivery of the <thing> is {when}, and {who} has to sign for it.;
            For the delivery of the <thing> {who} paid {amount}."""),
        choices("""
            {when} the <thing> is going to be delivered, for {amount} in all.;
            It is {who} who waits for the <thing>, which is delivered {when}."""),
    ),
    "dentist": (
        choices("""
            The dentist sees {who} {when}.; {who} has an appointment with the dentist {when} in {where}.;
            The dentist in {where} asks {amount} for a new tooth.;
            The new dentist is {who}, whose rooms are in {where}."""),
        choices("""
            An appointment with the dentist in {where} is made for {who}.;
            {when} it is time for the dentist, {who}."""),
    ),
    "club": (
        choices("""
            The <club> meets {when} in the <room>.; {who} leads the <club>, which meets {when}.;
            To join the <club> costs {amount} a year.; The <club> goes to {where} {when}, led by {who}."""),
        choices("""
            {when} there is a meeting of the <club>, and {who} leads it.;
            Members of the <club> pay {amount} and travel to {where}."""),
    ),
    "talk": (
        choices("""
            {who} gives a talk on <talk> {when}.; The talk on <talk> is in {where}, and tickets cost {amount}.;
            Tickets for the talk on <talk> {when} cost {amount}.; {who} from {where} gives a talk on <talk>."""),
        choices("""
            A talk on <talk> will be given by {who} in {where}.; {when} one can hear a talk on <talk> for {amount}."""),
    ),
    "bus": (
        choices("""
            The bus to {where} leaves {when}.; A seat on the bus to {where} costs {amount}.;
            The bus leaves {when}, and {who} drives it.; {who} drives the bus to {where} for {amount} a seat."""),
        choices("""
            {when} is when the bus leaves for {where}.;
            {who} sits behind the wheel of the bus, and a seat is {amount}."""),
    ),
    "repair": (
        choices("""
            {who} will repair the roof {when}.; The repair of the roof costs {amount}.;
            The workers for the roof come from {where} {when}.; {who} from {where} repairs the roof for {amount}."""),
        choices("""
            To have the roof repaired {when} we need {amount}.;
            The roof will be repaired by {who}, who comes from {where}."""),
    ),
}
ASKED: dict[str, dict[str, list[str]]] = {
    "delivery": {
        "when": choices("When is the delivery?; When will the delivery come?; On which day is it delivered?"),
        "amount": choices("What does the delivery cost?; How much is the delivery?"),
        "who": choices("Who is named for the delivery?; Who has to do with the delivery?"),
    },
    "dentist": {
        "when": choices("When is the dentist's appointment?; When does one see the dentist?"),
        "amount": choices("What does the dentist cost?; How much is the dentist?"),
        "who": choices("Who is named with the dentist?; Who has to do with the dentist?"),
        "where": choices("Where is the dentist?; In which town is the dentist?"),
    },
    "club": {
        "when": choices("When does the club meet?; When is the club's day?"),
        "amount": choices("What does the club cost?; How much is the club?"),
        "who": choices("Who leads the club?; Who is the club's head?"),
        "where": choices("Where does the club go?; To which town does the club go?"),
    },
    "talk": {
        "when": choices("When is the talk?; When is the talk given?"),
        "amount": choices("What does the talk cost?; How much is a ticket for the talk?"),
        "who": choices("Who gives the talk?; Who is to speak in the talk?"),
        "where": choices("Where is the talk?; Which town has to do with the talk?"),
    },
    "bus": {
        "when": choices("When does the bus leave?; When is the bus?"),
        "amount": choices("What does the bus cost?; How much is a seat on the bus?"),
        "who": choices("Who drives the bus?; Who is the driver of the bus?"),
        "where": choices("Where does the bus go?; To which town is the bus?"),
    },
    "repair": {
        "when": choices("When is the roof repaired?; When is the repair?"),
        "amount": choices("What does the roof cost?; How much is the repair?"),
        "who": choices("Who repairs the roof?; Who does the repair?"),
        "where": choices("Where do those for the roof come from?; Which town has to do with the repair?"),
    },
}
# How test-new-templates asks: in words of train, in another order.
ASKED_NEW = {
    "when": choices("And the <about>, when is it?; On which day is the <about>?"),
    "amount": choices("And the <about>, how much is it?; The <about>: what does it cost?"),
    "who": choices("And the <about>, who is it?; The <about>: who is named?"),
    "where": choices("And the <about>, where is it?; The <about>: in which town is it?"),
}


def expand(text: str, dice: Dice) -> str:
    """Each <list> by one of its members."""
    return re.sub(r"<(\w+)>", lambda found: dice.pick(CLOSED[found[1]]), text)


def value(slot: str, hand: Hand, dice: Dice) -> str:
    """What stands for a slot: names of the hand, and dates, times and amounts of all."""
    if slot == "who":
        return f"{dice.pick(hand['given'])} {dice.pick(hand['family'])}"
    if slot == "where":
        return dice.pick(hand["where"])
    if slot == "amount":
        return f"{2 + dice.below(97)} {dice.pick(CLOSED['money'])}"
    if dice.chance(0.4):
        return expand(f"on {1 + dice.below(28)} <month>", dice)
    time = " ".join(expand("<half> <hour>", dice).split())
    return expand(f"on <day> at {time}", dice) if dice.chance(0.6) else f"at {time}"


def notice(new: bool, hand: Hand, dice: Dice) -> tuple[str, dict[str, tuple[str, str, int]]]:
    """A passage, and of each thing that it tells the subject, the answer and its start; nothing is told twice."""
    text, told = "", dict[str, tuple[str, str, int]]()
    for subject in dice.shuffled(list(TOLD)):
        template = expand(dice.pick(TOLD[subject][new]), dice)
        if any(slot in told for slot in re.findall(r"\{(\w+)\}", template)):
            continue
        for part in re.split(r"(\{\w+\})", template):
            if part.startswith("{"):
                said = value(part[1:-1], hand, dice)
                said = said if text and text[-2:] != ". " else said[0].upper() + said[1:]
                told[part[1:-1]] = (subject, said, len(text))
                text += said
            else:
                text += part
        text += " " + (dice.pick(CLOSED["filler"]) + " " if dice.chance(FILLED) else "")
        if dice.chance(STOPPED):
            break
    return text.strip(), told


def question(subject: str, slot: str, new: bool, dice: Dice) -> str:
    """A question about one thing of a subject."""
    return dice.pick(ASKED_NEW[slot]).replace("<about>", subject) if new else dice.pick(ASKED[subject][slot])


def paragraph(new: bool, hand: Hand, dice: Dice, name: str) -> dict[str, Any]:
    """One passage with four questions: when, how much, who, where."""
    text, told = notice(new, hand, dice)
    subjects = [subject for subject, *_ in told.values()]
    qas = []
    for slot in dice.shuffled(["when", "amount", "who", "where"]):
        asked = dice.pick(
            [s for s in (subjects if slot not in told else [told[slot][0]]) if slot in ASKED[s]] or ["bus"]
        )
        gold = [{"text": told[slot][1], "answer_start": told[slot][2]}] if slot in told else []
        item = {"id": f"{name}-{len(qas)}", "question": question(asked, slot, new, dice)}
        qas.append({**item, "answers": gold, "is_impossible": not gold})
    return {"context": text, "qas": qas}


def hands(dice: Dice) -> dict[str, Hand]:
    """Names dealt out among the files: no name of test is one of train's."""
    made: dict[str, dict[str, list[str]]] = {file: {} for file in PASSAGES}
    towns = [a + b for a in DEALT["given"][:40] for b in ("ville", "ford", "bury", "stead")]
    for rule, words in {"given": DEALT["given"], "family": DEALT["family"], "where": towns}.items():
        cards = dice.shuffled(list(words))
        first, second = round(len(cards) * 0.6), round(len(cards) * 0.7)
        for file, hand in made.items():
            hand[rule] = cards[:first] if file == "train" else cards[first:second] if file == "dev" else cards[second:]
    return made


def main() -> None:
    """Write the four files."""
    parser = argparse.ArgumentParser(description="Write notices and questions about them.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    folder = parser.parse_args().out / "questions"
    folder.mkdir(parents=True, exist_ok=True)
    dice = Dice(SEED)
    for file, hand in hands(dice).items():
        new = file == "test-new-templates"
        rows = [paragraph(new, hand, dice, f"{file}-{i}") for i in range(PASSAGES[file])]
        lines = ",\n".join(json.dumps({"paragraphs": [row]}, ensure_ascii=False) for row in rows)
        content = f'{{"version": "v2.0", "data": [\n{lines}\n]}}\n'
        (folder / f"{file}.json").write_text(content, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
