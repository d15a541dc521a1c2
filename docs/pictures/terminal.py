"""Draw what commands print as pictures of a terminal, for README and the documentation.

    python docs/pictures/terminal.py                       all pictures; trains what they need: 20 minutes of one core
    python docs/pictures/terminal.py first-run entities    some of them
    python docs/pictures/terminal.py --folder FOLDER       in a folder that keeps the runs for the next time

Each picture is `docs/pictures/NAME.svg`. The commands are run as they are shown, in a copy of `pipelines/`; long output
is cut where a `…` stands. rich draws the picture, without its web font: nothing is fetched when a page is read.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.highlighter import JSONHighlighter, ReprHighlighter
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 96
# Without a terminal, a progress bar is printed as lines.
PROGRESS = re.compile(r"^  (training|evaluating|comparing): \d+ of .*\n", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """One command as it is shown, and what is shown of its output."""

    command: str
    first: int = 40  # number of lines kept of the beginning
    last: int = 0  # number of lines kept of the end
    hidden: str = ""  # options that change nothing that is seen, such as --fresh
    keep: str = ""  # pattern of the lines that are shown, where not all are


@dataclass(frozen=True)
class Picture:
    """A terminal in which some commands are typed, one after the other."""

    steps: Sequence[Step]
    needs: Sequence[str] = ()  # pipelines that are trained before
    files: Mapping[str, str] | None = None


def ask(bundle: str, text: str, options: str = "") -> Step:
    """The step that asks a bundle for the answer to a text."""
    return Step(f"echo {text!r} | seqpipe predict runs/{bundle}/bundle{options}".replace("'", '"'))


REQUESTS = """message,intent
where is my parcel,delivery
my parcel has not arrived,delivery
when will you deliver my order,delivery
the delivery is late,delivery
I want my money back,refund
please refund my order,refund
how do I get a refund,refund
the refund has not been paid,refund
I forgot my password,account
how do I change my password,account
please delete my account,account
I cannot log in to my account,account
"""

QUESTION = (
    "What does the talk cost?\tThe talk on wild flowers is in Lucasford, and tickets cost 22 crowns. "
    "The bus leaves on Sunday at a quarter to six, and Amara Bianchi drives it.\n"
)
NOTICE = (
    "Please tell all that Pembel Gelso declined to be head of Nejun Foods. Please tell all that Desfi Pamjol was not "
    "chosen as head of Mundagrol Tools. Sosdisla Lesti, says Warrirhin & Varseju, becomes head.\n"
)

PICTURES: Mapping[str, Picture] = {
    "first-run": Picture(
        [
            Step(
                "seqpipe run pipelines/ner.yaml",
                keep=r"^training|epoch +(1|2|15)/|^exporting|^comparing|^runs/ner|^(dev|test|new-templates) f1",
                hidden="--fresh",
            ),
            ask("ner", "Wake me at seven in Lausanne"),
        ]
    ),
    "entities": Picture(
        [ask("ner", "Wake me at seven in Lausanne"), ask("ner", "Play Paris by May", " --n-best 2")], ["ner"]
    ),
    "tags": Picture([ask("pos", "the old teacher reads a long letter")], ["pos"]),
    "labels": Picture(
        [ask("intent-lstm", "please set an alarm for six"), ask("intent-lstm", "will it rain in Rome tomorrow")],
        ["intent-lstm"],
    ),
    "sentiment": Picture(
        [
            ask("sentiment-cnn", "The soup was splendid, and the tour could not have been better."),
            ask("sentiment-cnn", "I would not come back for the coffee."),
        ],
        ["sentiment-cnn"],
    ),
    "several-heads": Picture([ask("slots-and-intent", "turn on the lamp in the kitchen")], ["slots-and-intent"]),
    "documents": Picture([Step("seqpipe evaluate runs/document-han/bundle", 14)], ["document-han"]),
    "reading": Picture(
        [
            Step("fold -s -w 92 question.txt"),
            Step("seqpipe predict runs/answer-span/bundle -i question.txt --n-best 2"),
        ],
        ["answer-span"],
        {"question.txt": QUESTION},
    ),
    "retrieval": Picture([ask("faq", "hi, what is the price of a card?", " --option k=2")], ["faq"]),
    "translation": Picture(
        [
            ask("translate", "The boy reads a book which his sister bought.", " --beams 4"),
            Step('seqpipe explain runs/translate/bundle "The boy reads a book which his sister bought." | tail -n 14'),
        ],
        ["translate"],
    ),
    "dates": Picture(
        [ask("dates", "May 3, 1999"), ask("dates", "the 21st of June 2024", " --beams 5 --n-best 3")],
        ["dates"],
    ),
    "summarise": Picture(
        [Step("fold -s -w 92 notice.txt"), Step("seqpipe predict runs/summarise/bundle -i notice.txt")],
        ["summarise"],
        {"notice.txt": NOTICE},
    ),
    "language-models": Picture(
        [
            Step(
                'echo "Rosa the owl" | seqpipe predict runs/gpt/bundle --stream --option max_length=60',
                hidden="| fold -s -w 92",
            )
        ],
        ["gpt"],
    ),
    "couplets": Picture(
        [ask("couplet", "两江长剑雪催远"), ask("poem", "绕院友落双燕剑", " --option max_length=24")],
        ["couplet", "poem"],
    ),
    "pointing": Picture(
        [Step("cat points.jsonl"), Step("seqpipe predict runs/hull/bundle -i points.jsonl")],
        ["hull"],
        {"points.jsonl": '{"points": [[0.1, 0.1], [0.9, 0.2], [0.5, 0.5], [0.8, 0.9], [0.2, 0.8]]}\n'},
    ),
    "chinese": Picture([ask("ner-zh", "明天早上七点播放周杰伦的稻香")], ["ner-zh"]),
    "segmentation": Picture([ask("segment-zh", "我们明天去北京的医院")], ["segment-zh"]),
    "init": Picture(
        [Step("head -n 4 requests.csv"), Step("seqpipe init requests.csv"), Step("head -n 16 requests.yaml")],
        files={"requests.csv": REQUESTS},
    ),
    "check": Picture(
        [
            Step("seqpipe check pipelines/ner.yaml encoder.hiden=200 train.epoch=3"),
            Step("seqpipe check pipelines/ner.yaml"),
        ]
    ),
    "evaluate": Picture([Step("seqpipe evaluate runs/ner/bundle", 18)], ["ner"]),
    "seeds": Picture([Step("seqpipe run pipelines/pos.yaml name=tags train.epochs=3 --seeds 2", 0, 4)]),
    "explain": Picture(
        [
            Step(
                "seqpipe explain runs/document-han/bundle "
                '"I ordered a lamp in May. It came broken. Please send me another one."'
            )
        ],
        ["document-han"],
    ),
    "plugins": Picture([Step("seqpipe plugins show gru", 24)]),
    "errors": Picture(
        [Step("seqpipe run pipelines/ner.yaml data.train=data/assistant-en/trian.conll encoder.use=lstn")]
    ),
    "verify": Picture([Step("seqpipe verify runs/ner/bundle"), Step("ls -sh runs/ner/bundle")], ["ner"]),
    "pairs": Picture(
        [Step("head -n 2 pipelines/data/pairs/test.csv"), Step("seqpipe evaluate runs/pairs-bert/bundle", 10)],
        ["pairs-bert"],
    ),
}


def record(picture: Picture, folder: Path) -> Text:
    """Run the commands of a picture and return what the terminal shows."""
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1", "PYTHONUTF8": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for name, content in (picture.files or {}).items():
        (folder / name).write_text(content, encoding="utf-8")
    for name in ("requests.yaml", "runs/tags-seed1", "runs/tags-seed2"):  # made by the commands themselves
        path = folder / name
        path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
    screen = Text()
    for step in picture.steps:
        command = f"set -o pipefail; {step.command} {step.hidden}"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode not in (0, 2):  # 2: a picture of mistakes
            raise SystemExit(f"{step.command}: exit code {done.returncode}\n{done.stdout}")
        lines = PROGRESS.sub("", done.stdout).replace(f"{folder}/", "").rstrip("\n").split("\n")
        if step.keep:
            kept = [number for number, line in enumerate(lines) if re.search(step.keep, line)]
            shown_lines = []
            for number, before in zip(kept, [-1, *kept], strict=False):
                if "epoch" in lines[number] and "epoch" in lines[before] and number > before + 1:
                    shown_lines.append("  …")
                shown_lines.append(lines[number])
            lines = shown_lines
        if len(lines) > step.first + step.last:
            lines = [*lines[: step.first], "  …", *lines[len(lines) - step.last :]]
        screen.append("$ ", "bold green").append(step.command + "\n", "bold")
        for line in lines:
            answer = line.startswith(("{", "["))
            shown = (JSONHighlighter() if answer else ReprHighlighter())(Text(line + "\n"))
            if not answer and re.search(r"\* \(|^wrote|: ok$", line):
                shown.stylize("green")
            screen.append_text(shown)
    screen.rstrip()
    return screen


def draw(name: str, screen: Text) -> None:
    """Write a picture."""
    console = Console(record=True, width=COLUMNS + 2, file=io.StringIO())
    console.print(screen, soft_wrap=False, highlight=False)
    svg = console.export_svg(title="seqpipe", unique_id=name)
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    (ROOT / "docs" / "pictures" / f"{name}.svg").write_text(svg, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="pictures to draw; none: all of them")
    parser.add_argument("--folder", type=Path, help="where the commands are run; the runs stay there")
    arguments = parser.parse_args()
    if unknown := sorted({*arguments.names} - {*PICTURES}):
        parser.error(f"no picture is named {', '.join(unknown)}; there are {', '.join(PICTURES)}")
    with tempfile.TemporaryDirectory(prefix="seqpipe-pictures-") as parent:
        folder = (arguments.folder or Path(parent)).resolve()
        shutil.copytree(ROOT / "pipelines", folder / "pipelines", dirs_exist_ok=True)
        for name in arguments.names or PICTURES:
            for pipeline in PICTURES[name].needs:
                command = [sys.executable, "-m", "seqpipe", "run", f"pipelines/{pipeline}.yaml", "--quiet"]
                subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            draw(name, record(PICTURES[name], folder))
            print(f"docs/pictures/{name}.svg")


if __name__ == "__main__":
    main()
