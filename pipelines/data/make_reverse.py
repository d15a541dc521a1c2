"""A seed to the reversal task: strings and the same read backwards, the same bytes each time."""

import argparse
import json
from pathlib import Path

from dice import Dice

SEED = 20_240_502
SIZES = {"train": 16000, "dev": 300, "test": 300}
ALPHABETS = ("abcdefghijklmnopqrstuvwxyz", "0123456789", "天地人山水火木土日月")
LONGEST = 8


def string(dice: Dice) -> str:
    """Half of the strings use one alphabet, half mix all three; longer ones are drawn a little more often."""
    length = 1 + max(dice.below(LONGEST), dice.below(LONGEST))
    only = dice.pick(ALPHABETS) if dice.chance(0.5) else None
    return "".join(dice.pick(only or dice.pick(ALPHABETS)) for _ in range(length))


def corpus() -> dict[str, list[str]]:
    """The strings of each file; none is drawn twice."""
    dice = Dice(SEED)
    used: dict[str, None] = {}  # keeps the order
    while len(used) < sum(SIZES.values()):
        used[string(dice)] = None
    strings = dice.shuffled(list(used))  # short strings run out early: without this they would all be in train
    return {file: [strings.pop() for _ in range(size)] for file, size in SIZES.items()}


def main() -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description="Write the reversal task.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    folder = parser.parse_args().out / "reverse"
    folder.mkdir(parents=True, exist_ok=True)
    for file, strings in corpus().items():
        rows = (json.dumps({"text": text, "reversed": text[::-1]}, ensure_ascii=False) for text in strings)
        (folder / f"{file}.jsonl").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
