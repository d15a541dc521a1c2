"""Mutations of data files: does `init`, or a reader, fail on a damaged file with anything but an error of seqpipe?

    python benchmarks/data_mutations.py                                     # 10,000 mutations of tests/corpus/init
    python benchmarks/data_mutations.py --seed 2 --count 500 --cases FOLDER # also of the files of another folder

Each mutation changes lines, cells, values or bytes of a file. A process of its own runs `init` on it and reads it with
the reader that `init` writes for the whole file. A traceback, more than 20 seconds, and 200 MB more than the whole file
needs are failures; the damaged file is kept. Figures are recorded in runs/results.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import common
from common import ROOT, RUNS

from seqpipe.config import loader
from seqpipe.config.plugins import Plugins
from seqpipe.config.signature import construct
from seqpipe.errors import SeqpipeError
from seqpipe.init import init_yaml

sys.path.insert(0, str(ROOT / "tests" / "support"))
import fuzzing

SECONDS, MEGABYTES = 20, 200
KEPT = RUNS / "data-mutations"
FORK = multiprocessing.get_context("fork")  # the parent has imported everything
MARKS = (b"\t", b",", b";", b" ", b"|", b'"', b"O", b"B-", b"#", b"__label__")


@dataclass(frozen=True)
class Case:
    """A file as it is, the reader that `init` writes for it (None where it refuses), and the memory that both need."""

    path: Path
    reader: Any
    megabytes: float


def damage(data: bytes, dice: random.Random) -> bytes:
    """Return the file with one to four changes of lines, cells, values of its JSON or YAML, or bytes."""
    if dice.random() < 0.5:
        return fuzzing.mutated(data, dice)
    lines = data.split(b"\n")
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(lines))
        match dice.randrange(9):
            case 0:
                lines[at] = b""
            case 1:
                del lines[at : at + dice.randint(1, 3)]
            case 2:
                lines[at] += dice.choice(MARKS) + dice.choice(MARKS)
            case 3:
                lines[at] = bytes(dice.choices(b"abcO-_BI\t ,;\"'{}[]0123#:\\", k=dice.randint(0, 30)))
            case 4:
                lines.insert(at, dice.choice(lines))
            case 5:
                lines[at] = lines[at][: dice.randint(0, len(lines[at]))]
            case 6:
                lines[at] = lines[at].replace(*dice.sample(MARKS, 2))
            case 7:
                lines = [line.replace(b"\t", b" ") for line in lines]
            case _:
                lines = lines[: dice.randint(1, len(lines))]
        lines = lines or [b""]
    return b"\n".join(lines)


def trial(path: Path, reader: Any, sender: Connection) -> None:
    """Run `init` and the reader, and send the place of a fault ("" if none) and the peak of memory in MB."""
    fault = ""
    yaml = Path(tempfile.mkdtemp(prefix="mutation-")) / "trial.yaml"
    for step in (lambda: init_yaml(path, yaml), lambda: reader and [*reader.read(path)]):
        try:
            step()
        except SeqpipeError:
            continue
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            fault = f"{type(error).__name__}: {str(error)[:100]} ({Path(place.filename).name}:{place.lineno})"
    shutil.rmtree(yaml.parent)
    sender.send((fault, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def outcome(path: Path, reader: Any) -> tuple[str, float]:
    """Return the fault of a file ("" if none) and the peak of memory in MB, by a process that is ended if it hangs."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=trial, args=(path, reader, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(SECONDS) else (f"more than {SECONDS} s", 0.0)
    except EOFError:
        return "the process ended", 0.0
    finally:
        process.kill()
        process.join()


def case(path: Path, folder: Path) -> Case:
    """Return a file with its reader, if `init` writes one."""
    reader = None
    try:
        init_yaml(path, folder / "whole.yaml")
        use = loader.load_config(folder / "whole.yaml").data.reader
        reader = construct(Plugins().find("reader", use.use).load(), **use.options)
    except SeqpipeError as error:
        print(f"{path.name}: init alone, {str(error).splitlines()[0][:100]}")
    (folder / "whole.yaml").unlink(missing_ok=True)
    return Case(path, reader, outcome(path, reader)[1])


def mutation(number: int, seed: int, cases: list[Case]) -> tuple[str, str]:
    """Return the fault of one mutation, "" if none, and the name of its reader or of the file."""
    dice = random.Random(f"{seed} {number}")
    chosen = dice.choice(cases)
    folder = Path(tempfile.mkdtemp(prefix="mutation-"))
    for beside in chosen.path.parent.iterdir():  # parts of parallel files, texts of annotations
        if beside.is_file() and beside.stem == chosen.path.stem:
            shutil.copy(beside, folder)
    path = folder / chosen.path.name
    path.write_bytes(damage(chosen.path.read_bytes(), dice))
    fault, megabytes = outcome(path, chosen.reader)
    if not fault and megabytes > chosen.megabytes + MEGABYTES:
        fault = f"{megabytes - chosen.megabytes:.0f} MB more"
    if fault:
        KEPT.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, KEPT / f"{number}-{path.name}")
        print(f"{number}-{path.name}: {fault}", flush=True)
    shutil.rmtree(folder)
    return fault, type(chosen.reader).__name__ if chosen.reader else "init alone"


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--cases", type=Path, nargs="*", default=[], help="folders of more files")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    files = [
        path
        for folder in (ROOT / "tests" / "corpus" / "init", *arguments.cases)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".md", ".py") and path.name != "expected.yaml"
    ]
    scratch = Path(tempfile.mkdtemp(prefix="whole-"))
    cases = [case(path, scratch) for path in files if path.stat().st_size < 100_000]
    shutil.rmtree(scratch)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = [*pool.map(lambda number: mutation(number, arguments.seed, cases), range(arguments.count))]
    faults = Counter(fault for fault, _ in results if fault)
    by_reader = Counter(reader for _, reader in results)
    print(
        f"{len(results):,} mutations of {len(cases)} files, {faults.total()} faults", *faults.most_common(20), sep="\n"
    )
    print(*(f"{reader}: {number}" for reader, number in by_reader.most_common()), sep="\n")
    figures = {"files": len(cases), "readers": len(by_reader) - 1, "faults": faults.total()}
    row = {"row": f"{len(results):,} mutations, seed {arguments.seed}", "figures": figures, "met": not faults}
    common.record("fuzzing", "data files", [row])


if __name__ == "__main__":
    main()
