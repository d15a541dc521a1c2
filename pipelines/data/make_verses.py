"""Chinese verses of four lines to `verses`: the second answers the first, the fourth the third; the same each time."""

import argparse
import json
from pathlib import Path

from dice import Dice
from make_couplets import ANSWERS, USUAL, line

SEED = 20_261_125
SIZES = {"train": 3000, "dev": 200, "test": 200}


def verse(dice: Dice) -> str:
    """Four lines, all of five characters or all of seven."""
    first = line(dice, USUAL)
    third = line(dice, USUAL)
    while len(third) != len(first) or {*third} & {*first}:
        third = line(dice, USUAL)
    lines = [first, "".join(map(ANSWERS.__getitem__, first)), third, "".join(map(ANSWERS.__getitem__, third))]
    return "\n".join(lines)


def corpus() -> dict[str, list[str]]:
    """The verses of each file; none stands twice."""
    dice, seen = Dice(SEED), set[str]()
    found: dict[str, list[str]] = {name: [] for name in SIZES}
    for name, size in SIZES.items():
        while len(found[name]) < size:
            made = verse(dice)
            if made not in seen:
                seen.add(made)
                found[name].append(made)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().out / "verses"
    folder.mkdir(parents=True, exist_ok=True)
    for name, verses in corpus().items():
        rows = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in verses)
        (folder / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8", newline="\n")
