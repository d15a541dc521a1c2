"""Handwritten digits to `digits`, and scenes of them with captions to `captions`, the same bytes each time.

The digits are the test set of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998), which
scikit-learn contains: 1,797 pictures of 8 x 8 pixels of 17 shades.
"""

import argparse
import base64
import gzip
import json
import struct
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from dice import Dice

SEED = 20_261_126
DIGITS = {"train": 800, "dev": 100, "test": 250}
SCENES = {"train": 12_000, "dev": 200, "test": 500, "test-new-pairs": 500}
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIDE, CELL, CANVAS = 8, 9, 28  # pixels of a digit, of a digit with its margin, and of a scene
RELATIONS = {"left of": (0, 1), "above": (1, 0)}  # rows and columns to the next digit

Picture = list[list[int]]  # rows of shades, 0 to 15


def pictures() -> list[tuple[Picture, int]]:
    """The digits, with 16 shades, and which ones they are."""
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("scikit-learn, which contains the digits, is not installed: pip install scikit-learn")
    file = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    rows = [[*map(int, map(float, line.split(",")))] for line in gzip.decompress(file.read_bytes()).decode().split()]
    return [([[min(15, n) for n in row[i : i + SIDE]] for i in range(0, 64, SIDE)], row[-1]) for row in rows]


def png(picture: Picture) -> str:
    """A grey PNG of 4 bits a pixel in base64."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    lines = b"".join(bytes([0, *(a << 4 | b for a, b in zip(row[::2], row[1::2], strict=True))]) for row in picture)
    head = struct.pack(">IIBBBBB", len(picture[0]), len(picture), 4, 0, 0, 0, 0)
    data = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + data).decode()


def is_held_out(first: int, second: int) -> bool:
    """Whether no training scene has these neighbours: two for each digit, as the first and as the second."""
    return (3 * first + 7 * second) % 5 == 0


def varied(dice: Dice, picture: Picture) -> Picture:
    """The digit as another hand may write it: stretched and slanted in both directions, paler or darker."""
    down, across, ink = (1 + dice.between(0.15) for _ in range(3))
    slant, tilt = (dice.between(0.25) for _ in range(2))
    middle, edge = (SIDE - 1) / 2, [0] * (SIDE + 2)
    framed = [edge, *([0, *row, 0] for row in picture), edge]  # 0 around the digit

    def shade(row: float, column: float) -> float:  # bilinear interpolation of the four pixels around a place
        row, column = (min(max(place + 1, 0), SIDE + 0.999) for place in (row, column))
        y, x = int(row), int(column)
        above, below = (line[x] + (column - x) * (line[x + 1] - line[x]) for line in framed[y : y + 2])
        return above + (row - y) * (below - above)

    places = [place - middle for place in range(SIDE)]
    return [
        [min(15, int(ink * shade(down * y + tilt * x + middle, across * x + slant * y + middle) + 0.5)) for x in places]
        for y in places
    ]


def scene(dice: Dice, digits: list[list[Picture]], is_train: bool, held_out: bool) -> tuple[Picture, str]:
    """A scene of at most three digits and its caption; all of its neighbours are held out, or none.

    Those of training may have one digit alone, and vary digits.
    """
    shown, fewest = [dice.below(10)], 1 if is_train else 2
    relations = [dice.pick([*RELATIONS]) for _ in range(fewest - 1 + dice.below(4 - fewest))]
    for _ in relations:
        shown.append(dice.pick([n for n in range(10) if is_held_out(shown[-1], n) == held_out]))
    steps = [RELATIONS[relation] for relation in relations]
    row, column = (dice.below(3 - sum(step[axis] for step in steps)) for axis in (0, 1))
    canvas = [[0] * CANVAS for _ in range(CANVAS)]
    for number, (down, right) in zip(shown, [(0, 0), *steps], strict=True):
        row, column = row + down, column + right
        y, x, picture = row * CELL + dice.below(3), column * CELL + dice.below(3), dice.pick(digits[number])
        picture = varied(dice, picture) if is_train else picture
        for i, line in enumerate(picture):
            canvas[y + i][x : x + SIDE] = [max(pair) for pair in zip(canvas[y + i][x : x + SIDE], line, strict=True)]
    named = [f"{'an' if NAMES[n] == 'eight' else 'a'} {NAMES[n]}" for n in shown]
    return canvas, named[0] + "".join(
        f" {relation} {name}" for relation, name in zip(relations, named[1:], strict=True)
    )


def parts() -> dict[str, list[tuple[Picture, int]]]:
    """The pictures of each file of `digits`, those of one file in no other, and those of none as `rest`."""
    shuffled, begin, dealt = Dice(SEED).shuffled(pictures()), 0, {}
    for file, size in DIGITS.items():
        dealt[file], begin = shuffled[begin : begin + size], begin + size
    return dealt | {"rest": shuffled[begin:]}


def scenes(file: str, size: int, seed: int) -> Iterator[dict[str, str]]:
    """Scenes for a file of `captions`, of its digits; training has those of no file and single digits too."""
    dice, by_file = Dice(seed), parts()
    dealt = by_file["train"] + by_file["rest"] if file == "train" else by_file[file.partition("-")[0]]
    digits = [[picture for picture, number in dealt if number == n] for n in range(10)]
    for _ in range(size):
        canvas, caption = scene(dice, digits, file == "train", file == "test-new-pairs")
        yield {"image": png(canvas), "target": caption}


def write(path: Path, rows: Iterator[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8", newline="\n")


def main() -> None:
    """Write the files of both folders."""
    parser = argparse.ArgumentParser(description="Write handwritten digits, and scenes of them with captions.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    out = parser.parse_args().out
    dealt = parts()
    for file in DIGITS:
        rows = ({"image": png(picture), "label": str(n)} for picture, n in dealt[file])
        write(out / "digits" / f"{file}.jsonl", rows)
    for number, (file, size) in enumerate(SCENES.items(), 1):
        write(out / "captions" / f"{file}.jsonl", scenes(file, size, SEED + number))


if __name__ == "__main__":
    main()
