"""How `init` decides about fuzzed files: is content dropped in silence, and does anything end in a traceback?

    python benchmarks/readings.py               # 3,000 files
    python benchmarks/readings.py --files 300

The heads of `tests/init/heads.jsonl.gz` that are tables or JSON Lines are changed at random: columns are swapped,
renamed and added, cells are emptied or replaced by those of another kind, the row of names is dropped. Each file is
read, asked about or refused. Of a file that is read, every column or key with content must have a role or be named with
the reason why it has none. Figures are recorded in runs/results.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common

from seqpipe.errors import SeqpipeError
from seqpipe.init.look import summarise

HEADS = common.ROOT / "tests" / "init" / "heads.jsonl.gz"
ODD_CELLS = ("", "n/a", "12", "-", "???", "0.5", "x" * 300, "2020-01-01", "a.wav", "['a', 'b']")
Rows = list[list[str]]


def swap(rows: Rows, dice: random.Random) -> Rows:
    order = dice.sample(range(len(rows[0])), len(rows[0]))
    return [[row[i] for i in order] for row in rows]


def rename(rows: Rows, dice: random.Random) -> Rows:
    place = dice.randrange(len(rows[0]))
    return [[*rows[0][:place], "qz", *rows[0][place + 1 :]], *rows[1:]]


def drop_names(rows: Rows, dice: random.Random) -> Rows:
    return rows[1:]


def add_column(rows: Rows, dice: random.Random) -> Rows:
    kind = dice.choice(["a b c d e", "few", "1", "0.5", "sounds/a.wav", "2020-01-02"])
    cells = [f"{kind} {dice.randint(1, 999)}" if kind == "a b c d e" else kind + dice.choice("123") for _ in rows]
    return [[*row, "extra" if i == 0 else cell] for i, (row, cell) in enumerate(zip(rows, cells, strict=True))]


def change_cells(rows: Rows, dice: random.Random) -> Rows:
    place, share = dice.randrange(len(rows[0])), dice.choice([0.02, 0.1, 1.0])
    odd = dice.choice(ODD_CELLS)
    changed = [[*row[:place], odd if dice.random() < share else row[place], *row[place + 1 :]] for row in rows[1:]]
    return [rows[0], *changed]


def drop_column(rows: Rows, dice: random.Random) -> Rows:
    place = dice.randrange(len(rows[0]))
    return [row[:place] + row[place + 1 :] for row in rows] if len(rows[0]) > 1 else rows


CHANGES: list[Callable[[Rows, random.Random], Rows]] = [swap, rename, drop_names, add_column, change_cells, drop_column]


def table_of(text: str, name: str) -> tuple[Rows, str] | None:
    """Return the rows of a table or of flat JSON Lines, and the form to write them in."""
    if text[:1] == "{":
        try:
            objects = [json.loads(line) for line in text.splitlines()]
        except ValueError:
            return None
        keys = [*objects[0]]
        if any(not isinstance(value, (str, int, float)) for item in objects for value in item.values()):
            return None
        return [keys, *([str(item.get(key, "")) for key in keys] for item in objects)], "jsonl"
    sign = "\t" if name.endswith(".tsv") else ","
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=sign) if row]
    is_table = name.endswith((".csv", ".tsv")) and len(rows) > 8 and len({*map(len, rows)}) == 1 and len(rows[0]) > 1
    return (rows, sign) if is_table else None


def write(rows: Rows, form: str, folder: Path) -> Path:
    """Write rows as a table or as JSON Lines."""
    if form == "jsonl":
        path = folder / "train.jsonl"
        objects = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
        path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in objects), encoding="utf-8")
        return path
    path = folder / ("train.tsv" if form == "\t" else "train.csv")
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=form, lineterminator="\n").writerows(rows)
    return path


def outcome(path: Path) -> tuple[str, str]:
    """Return what becomes of a file, and the problem if there is one."""
    try:
        summary = summarise(path, None, None, (), None)
    except SeqpipeError as error:
        return ("asked" if "nothing was written" in str(error) else "refused"), ""
    except Exception:
        return "traceback", traceback.format_exc()[-400:]
    decision: Any = summary.decision
    said = " ".join([*summary.notes, *(doubt.text for doubt in summary.doubts)])
    best = decision.best
    for field in best.frame.fields if best.frame and "*" not in best.unused else []:
        reason = decision.unused.get(field.name)
        is_open = field.name not in best.roles and reason is None
        if is_open and field.name not in said and field.title not in said:
            return "silent", f"{field.title} ({field.kind}) of {path.read_text()[:200]!r}"
    return "read", ""


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--files", type=int, default=3_000)
    arguments = parser.parse_args()
    heads = [json.loads(line) for line in gzip.decompress(HEADS.read_bytes()).decode().splitlines()]
    tables = [table for head in heads if (table := table_of(head["files"][head["file"]], head["file"]))]
    counts = Counter[str]()
    for number in range(arguments.files):
        dice = random.Random(number)
        rows, form = dice.choice(tables)
        for change in dice.sample(CHANGES, dice.randint(1, 3)):
            rows = change(rows, dice)
        if not rows or (form == "jsonl" and len({*rows[0]}) < len(rows[0])):
            counts["not tried"] += 1
            continue
        with tempfile.TemporaryDirectory() as folder:
            result, problem = outcome(write(rows, form, Path(folder)))
        counts[result] += 1
        if problem:
            print(f"{number}: {result}: {problem}", flush=True)
    figures = {"files": counts.total() - counts["not tried"]} | {
        kind: counts[kind] for kind in ("read", "asked", "refused")
    }
    figures |= {"content dropped in silence": counts["silent"], "tracebacks": counts["traceback"]}
    print(figures)
    met = not (counts["silent"] or counts["traceback"])
    row = {"row": f"changes of {len(tables)} tables and JSON files", "figures": figures, "met": met}
    common.record("readings", "fuzzed files", [row])


if __name__ == "__main__":
    main()
