"""Chinese verses of four lines to `verses`: the second answers the first, the fourth the third; the same each time."""

import argparse
import json
from pathlib import Path

from dice import Dice, distinct
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().out / "verses"
    folder.mkdir(parents=True, exist_ok=True)
    for name, verses in distinct(SIZES, verse, SEED).items():
        rows = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in verses)
        (folder / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8", newline="\n")
