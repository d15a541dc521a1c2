"""Sentences to learn from and minimal pairs to `minimal-pairs`, English and Chinese, the same bytes each time.

The pairs (in the form of BLiMP, Warstadt et al. 2020) are made of combinations of words that stand together in no
sentence to learn from: they are judged by what was learned of the words, not by what was seen.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import minimal_pairs_en
import minimal_pairs_zh
from dice import Combinations, Dice, distinct

SEED = 20_261_126
SIZES = {"train": 6000, "dev": 200, "test": 200}
EACH = 40  # pairs of a phenomenon
Make = Callable[[Combinations], dict[str, Any]]
LANGUAGES = {"en": minimal_pairs_en, "zh": minimal_pairs_zh}


def records(phenomena: Mapping[str, tuple[str, Make]], seed: int) -> list[str]:
    """JSON lines, so many of each phenomenon; none stands twice."""
    lines = []
    for number, (name, (term, make)) in enumerate(phenomena.items()):

        def line(dice: Dice, name: str = name, term: str = term, make: Make = make) -> str:
            record = make(Combinations(dice, held_out=True)) | {"linguistics_term": term, "UID": name}
            return json.dumps(record, ensure_ascii=False)

        lines += distinct({name: EACH}, line, seed + number)[name]
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().out / "minimal-pairs"
    folder.mkdir(parents=True, exist_ok=True)
    for number, (language, module) in enumerate(LANGUAGES.items()):
        seed = SEED + 100 * number
        parts = distinct(SIZES, lambda dice, make=module.sentence: make(Combinations(dice, held_out=False)), seed)
        files = {f"{language}.{part}.txt": lines for part, lines in parts.items()}
        files[f"{language}.jsonl"] = records(module.PHENOMENA, seed + 1)
        for file, lines in files.items():
            (folder / file).write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
