"""Little tales to `tales`: plain text, an empty line between two, the same bytes each time."""

import argparse
from pathlib import Path

from dice import Dice, distinct
from words_en import choices

SEED = 20_261_124
SIZES = {"train": 1000, "dev": 100, "test": 100}

WHO = choices("fox; hare; owl; hedgehog; otter; goose; mouse; badger; crow; frog; cat; goat")
NAMED = choices("Tilo; Mina; Oskar; Pia; Ruben; Lena; Juri; Nele; Bruno; Wanda; Emil; Frieda; Kasimir; Rosa")
WHERE = choices(
    "by the river; behind the mill; under an old oak; at the edge of the wood; on a green hill; near the pond"
)
WHEN = choices("One morning; One evening; On a windy day; In the first snow; At noon; Before sunrise")
FOUND = choices(
    "a red kite; a silver key; a basket of pears; a broken clock; a blue lantern; a wooden flute; a warm scarf"
)
DID = choices("showed it to; hid it from; carried it to; asked for help from; gave it to")
FELT = choices("was glad; laughed; was surprised; did not say a word; shook with joy; thought for a while")
SAID = choices("Let us keep it; It is not ours; We should share it; Somebody will miss it; Let us look for its owner")
THEN = choices("they sat together until the stars came out; they walked home in the rain; they shared some bread;"
    " they sang an old song; they went looking all night; they became friends")  # fmt: skip


def tale(dice: Dice) -> str:
    """Two animals and a thing; who is named once is called the same to the end."""
    first, second = dice.shuffled(WHO)[:2]
    name, other = dice.shuffled(NAMED)[:2]
    found = dice.pick(FOUND)
    thing = found.split()[-1] if "basket" not in found else "basket"
    lines = [
        f"{name} the {first} lived {dice.pick(WHERE)}.",
        f"{dice.pick(WHEN)} {name} found {found}.",
        f"{name} {dice.pick(DID)} {other} the {second}, and {other} {dice.pick(FELT)}.",
        f'"{dice.pick(SAID)}," said {dice.pick([name, other])}.',
        f"So they took the {thing} with them, and {dice.pick(THEN)}.",
    ]
    if dice.chance(0.4):
        lines.append(f"The {first} and the {second} still talk about the {thing}.")
    return " ".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().out / "tales"
    folder.mkdir(parents=True, exist_ok=True)
    for name, tales in distinct(SIZES, tale, SEED).items():
        (folder / f"{name}.txt").write_text("\n\n".join(tales) + "\n", encoding="utf-8", newline="\n")
