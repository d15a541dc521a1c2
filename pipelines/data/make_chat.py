"""Talk at the counter of a café to `chat`: the last turns, and what the clerk says next, the same bytes each time."""

import argparse
import json
from pathlib import Path

from dice import Dice
from words_en import choices

SEED = 20_261_124
SIZES = {"train": 5000, "dev": 300, "test": 500, "test-new-templates": 500}
LAST = 3  # turns that the clerk remembers
BETWEEN = " | "

DRINKS = {"coffee": 2, "latte": 3, "cocoa": 3, "lemonade": 2, "espresso": 2, "smoothie": 4, "cider": 4, "mocha": 3}
COUNTS = {"a": 1, "two": 2, "three": 3, "four": 4, "five": 5}
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
SIZE = {"small": 0, "large": 1}  # what it costs more
NAMES = choices("""
    Anna; Paul; Maria; Peter; Laura; Simon; Clara; Oscar; Nina; Felix; Hugo; Ruth; Leo; Grace; Owen; Hannah; Sophie;
    Daniel; Irene; Noah; Elena; Omar; Kenji; Ravi; Ingrid; Yuki; Olga; Kofi; Leila; Sven""")
SAID: dict[str, tuple[list[str], list[str]]] = {  # of each kind: the usual ways, those of the new templates
    "order": (
        choices("{order}, please; I would like {order}; can I have {order}; hello, {order}; {order} for me"),
        choices("could you make me {order}; {order} would be lovely; good morning, I came for {order}"),
    ),
    "size": (
        choices("{size}; {size}, please; make it {size}; the {size} one"),
        choices("rather {size}; {size} is fine; let us say {size}"),
    ),
    "where": (
        choices("to go; to go, please; here; I stay here; I take it with me"),
        choices("for here; I am in a hurry, so to go; we sit down here"),
    ),
    "name": (
        choices("{name}; my name is {name}; I am {name}; for {name}"),
        choices("call me {name}; it is {name}; just {name}"),
    ),
}
AWAY = ("to go", "with me")


def plural(count: str, drink: str) -> str:
    return f"{count} {drink}" if count == "a" else f"{count} {drink}s"


def price(count: str, size: str, drink: str) -> str:
    """In euros, in words up to ten."""
    total = COUNTS[count] * (DRINKS[drink] + SIZE[size])
    return f"{NUMBERS[total] if total < len(NUMBERS) else total} euros"


def talk(dice: Dice, new: bool) -> list[tuple[str, str]]:
    """What the guest says and what the clerk answers, in turn."""
    count, drink, size, name = dice.pick([*COUNTS]), dice.pick([*DRINKS]), dice.pick([*SIZE]), dice.pick(NAMES)

    def said(kind: str, **slots: str) -> str:
        return dice.pick(SAID[kind][new]).format(**slots)

    told = dice.chance(0.4)  # the size at once
    order = plural(count, f"{size} {drink}" if told else drink)
    turns = [(said("order", order=order), f"{plural(count, drink)}, small or large?")]
    due = f"{plural(count, f'{size} {drink}')}, that is {price(count, size, drink)}. here or to go?"
    turns = [(turns[0][0], due)] if told else [*turns, (said("size", size=size), due)]
    where = said("where")
    if any(word in where for word in AWAY):
        turns += [(where, "what is your name?"), (said("name", name=name), f"thank you, {name}! one moment")]
    else:
        turns.append((where, f"I bring {'it' if count == 'a' else 'them'} to your table"))
    return turns


def corpus() -> dict[str, list[tuple[str, str]]]:
    """The pairs of each file; none stands twice."""
    dice = Dice(SEED)
    used: set[str] = set()
    found: dict[str, list[tuple[str, str]]] = {}
    for file, size in SIZES.items():
        pairs = found[file] = []
        while len(pairs) < size:
            turns: list[str] = []
            for guest, clerk in talk(dice, file == "test-new-templates"):
                turns.append(guest)
                text = BETWEEN.join(turns[-LAST:])
                if text not in used and len(pairs) < size:
                    used.add(text)
                    pairs.append((text, clerk))
                turns.append(clerk)
    return found


def main() -> None:
    """Write the four files."""
    parser = argparse.ArgumentParser(description="Write talk at a counter.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    folder = parser.parse_args().out / "chat"
    folder.mkdir(parents=True, exist_ok=True)
    for file, pairs in corpus().items():
        rows = (json.dumps({"text": text, "target": reply}) for text, reply in pairs)
        (folder / f"{file}.jsonl").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
