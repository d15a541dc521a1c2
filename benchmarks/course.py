"""Experiments and pictures of the course, docs/course.

    python benchmarks/course.py rnn                 # loss by letter of Elman's language
    python benchmarks/course.py memory              # accuracy by distance of recurrent cells, and their learning curves
    python benchmarks/course.py names               # trains pipelines/translate-names.yaml with and without copying
    python benchmarks/course.py pictures            # draws all pictures of docs/course
    python benchmarks/course.py pictures rnn lstm   # draws some

The figures of an experiment are recorded in runs/results. Pictures are drawn from stored figures (benchmarks/results)
or from short computations; the same versions of the libraries draw the same bytes. PyTorch and matplotlib are imported
where they are used, so that tests can list the experiments and pictures at once.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import common
from common import RESULTS, ROOT, RUNS

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

sys.path.insert(0, str(ROOT))

COURSE = ROOT / "docs" / "course"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # Okabe and Ito (2008)
GREY = "#777777"


def new_figure(width: float = 6.4, height: float = 3.6) -> Figure:
    """Return an empty figure, in inches, whose SVG is the same each time; on a white background."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams |= {"svg.hashsalt": "course", "svg.fonttype": "none", "font.size": 10}
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def stored(name: str, question: str) -> dict[str, dict[str, Any]]:
    """Return the figures of benchmarks/results/NAME.json, by row."""
    content = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return {row["row"]: row["figures"] for row in content["questions"][question]["rows"]}


def pictures(names: Sequence[str]) -> None:
    """Draw pictures into docs/course."""
    for name in names or PICTURES:
        PICTURES[name]().savefig(COURSE / f"{name}.svg", metadata={"Date": None})


# 1 rnn

SYLLABLES = {"b": "ba", "d": "dii", "g": "guuu"}  # the language of Elman (1990)
LETTERS = "bdgaiu"
LETTER_STEPS = 400


def letter_text(syllables: int) -> str:
    """Return random syllables of Elman's language."""
    import torch

    return "".join(SYLLABLES["bdg"[index]] for index in torch.randint(3, (syllables,)))


def train_on_letters(is_recurrent: bool) -> Callable[[str], torch.Tensor]:
    """Train a language model, and return its log probabilities of the letters of a text: (T, letters).

    The model reads the letter before, and what came before that in the state of an RNN of 16 units if it has one.
    """
    import torch
    from torch import nn
    from torch.nn import functional as F

    from seqpipe.config.signature import construct
    from seqpipe_plugins.encoders.rnn import RNN

    torch.manual_seed(1)
    embedding, output = nn.Embedding(len(LETTERS) + 1, 8), nn.Linear(16 if is_recurrent else 8, len(LETTERS))
    encoder = construct(RNN, 8, {}, hidden=16, direction="forward") if is_recurrent else None

    def predict(text: str) -> torch.Tensor:
        ids = torch.tensor([[len(LETTERS), *map(LETTERS.index, text[:-1])]])  # (1, T), a start symbol first
        x = embedding(ids)
        x = encoder(x, torch.ones_like(ids).bool())["x"] if encoder else x
        return F.log_softmax(output(x)[0], 1)

    modules = [embedding, output, *([encoder] if encoder else [])]
    optimizer = torch.optim.Adam([weight for module in modules for weight in module.parameters()], lr=0.01)
    for _ in range(LETTER_STEPS):
        text = letter_text(60)
        optimizer.zero_grad()
        F.nll_loss(predict(text), torch.tensor([*map(LETTERS.index, text)])).backward()
        optimizer.step()
    return predict


def rnn() -> None:
    """Measure the loss of each letter of Elman's language, with a recurrent network and from one letter alone."""
    import torch

    torch.set_num_threads(1)
    table = common.Table("course", "rnn", "model reads", "b, d, g", "a", "1st i", "2nd i", "1st u", "2nd u", "3rd u")
    for name, is_recurrent in {"the letter before": False, "all letters before, `rnn`": True}.items():
        predict = train_on_letters(is_recurrent)
        text = letter_text(2000)
        with torch.no_grad():
            losses = -predict(text)[range(len(text)), [*map(LETTERS.index, text)]]
        columns: dict[str, list[float]] = {}
        for end, loss in enumerate(losses.tolist(), 1):
            vowels = re.search(r"[aiu]*\Z", text[:end])
            assert vowels
            columns.setdefault(vowels[0] or "consonant", []).append(loss)
        means = {key: sum(values) / len(values) for key, values in columns.items()}
        table.row(name, *(f"{means[key]:.2f}" for key in ("consonant", "a", "i", "ii", "u", "uu", "uuu")))


def draw_rnn() -> Figure:
    """Draw the entropy of the prediction of each letter."""
    import torch

    text = "guuubadiiguuudiibabaguuudiiba"
    figure = new_figure(6.8, 2.8)
    axes = figure.subplots()
    for is_recurrent, colour, style, label in (
        (False, COLOURS[1], "s--", "from the letter before"),
        (True, COLOURS[0], "o-", "recurrent network"),
    ):
        predict = train_on_letters(is_recurrent)
        with torch.no_grad():
            log_probabilities = predict(text)
        entropy = -(log_probabilities.exp() * log_probabilities).sum(1)
        axes.plot(range(len(text)), entropy.tolist(), style, color=colour, label=label, markersize=4)
    axes.set(xlabel="the letter to be predicted", ylabel="entropy, nats", xticks=range(len(text)), ylim=(0, 1.9))
    axes.set_xticklabels([*text])
    axes.legend(loc="upper right", ncols=2, frameon=False)
    return figure


# 2 vanishing-gradients

DISTANCES = (10, 20, 50, 100)
SYMBOLS, BATCH, DIM, HIDDEN, LEARNING_RATE = 8, 64, 16, 64, 0.003
STEPS, CHECKED, TESTED = 1500, 50, 2000  # training steps at most, steps between two checks, sequences of a test
SEEDS = (1, 2, 3)  # all for the longest distance, the first for the others
SHOWN_STEPS = (100, 200, 400, 800, 1500)  # of learning curves
CELLS = {  # whether `longest_dependency` is the distance
    "`rnn`": ("rnn", False),
    "`lstm`": ("lstm", False),
    "`gru`": ("gru", False),
    "`lstm`, `longest_dependency`": ("lstm", True),
    "`gru`, `longest_dependency`": ("gru", True),
}


def recall(cell: str, longest_dependency: int | None, distance: int, seed: int) -> list[float]:
    """Train one layer to recall the first of several symbols, and return its accuracy after every `CHECKED` steps.

    The other symbols are random. Training ends once all new sequences are answered correctly, or after `STEPS`.
    """
    import torch
    from torch import nn
    from torch.nn import functional as F

    from seqpipe.config.signature import construct
    from seqpipe_plugins.encoders.gru import GRU
    from seqpipe_plugins.encoders.lstm import LSTM
    from seqpipe_plugins.encoders.rnn import RNN

    torch.manual_seed(seed)
    options = {"longest_dependency": longest_dependency} if longest_dependency else {}
    encoders: Mapping[str, Any] = {"rnn": RNN, "lstm": LSTM, "gru": GRU}
    embedding, output = nn.Embedding(SYMBOLS, DIM), nn.Linear(HIDDEN, SYMBOLS)
    encoder = construct(encoders[cell], DIM, {}, hidden=HIDDEN, direction="forward", **options)
    parameters = [*embedding.parameters(), *output.parameters(), *encoder.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)

    def predict(ids: torch.Tensor) -> torch.Tensor:  # (B, T) -> (B, SYMBOLS)
        logits: torch.Tensor = output(encoder(embedding(ids), torch.ones_like(ids).bool())["state"])
        return logits

    accuracies: list[float] = []
    for step in range(1, STEPS + 1):
        ids = torch.randint(SYMBOLS, (BATCH, distance + 1))
        optimizer.zero_grad()
        F.cross_entropy(predict(ids), ids[:, 0]).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % CHECKED == 0:
            ids = torch.randint(SYMBOLS, (TESTED, distance + 1))
            with torch.no_grad():
                accuracies.append(float((predict(ids).argmax(1) == ids[:, 0]).double().mean()))
            if accuracies[-1] == 1:
                break
    return accuracies


def memory() -> None:
    """Measure the accuracy of recalling the first symbol, by cell and distance, and the curves of the longest one."""
    import torch

    torch.set_num_threads(1)
    by_distance = common.Table("course", "memory", "cell", *(f"distance {distance}" for distance in DISTANCES))
    rows = {}
    for name, (cell, is_spread) in CELLS.items():
        cells = []
        for distance in DISTANCES:
            seeds = SEEDS if distance == max(DISTANCES) else SEEDS[:1]
            curves = [recall(cell, distance if is_spread else None, distance, seed) for seed in seeds]
            cells.append(" / ".join(f"{100 * curve[-1]:.1f} % ({CHECKED * len(curve)} steps)" for curve in curves))
        by_distance.row(name, *cells)
        rows[name] = curves[0]  # of the longest distance
    by_steps = common.Table("course", "memory_curves", "cell", *(f"{steps} steps" for steps in SHOWN_STEPS))
    for name, curve in rows.items():
        ends = [curve[min(steps // CHECKED, len(curve)) - 1] for steps in SHOWN_STEPS]
        by_steps.row(name, *(f"{100 * accuracy:.1f} %" for accuracy in ends))


def draw_memory() -> Figure:
    """Draw the mean accuracy by distance."""
    figure = new_figure()
    axes = figure.subplots()
    for (name, figures), colour, style in zip(stored("course", "memory").items(), COLOURS, "os^Dv", strict=False):
        means = []
        for cell in figures.values():
            accuracies = [float(text) for text in re.findall(r"([\d.]+) %", cell)]
            means.append(sum(accuracies) / len(accuracies))
        is_spread = "longest" in name
        label = name.replace("`", "").replace(", ", ",\n")
        axes.plot(DISTANCES, means, style + ("-" if is_spread else "--"), color=colour, label=label)
    axes.axhline(100 / SYMBOLS, color=GREY, linewidth=1, label="chance")
    axes.set(xlabel="distance of the symbol to be recalled", ylabel="accuracy, %", ylim=(0, 105), xticks=DISTANCES)
    figure.legend(loc="outside right center", frameon=False)
    return figure


# 9 copying

NAMES = ROOT / "pipelines" / "data" / "translation-names"
PLAIN_HEAD = {"use": "seq2seq", "hidden": 160, "embedding_dim": 96, "dropout": 0.2}
PLAIN_HEAD |= {"target_tokenizer": {"use": "words", "min_count": 6, "detokenize": True}}


def names() -> None:
    """Train with and without copying, and measure BLEU and the share of unseen names that are in the translation."""
    from seqpipe import load

    rows = [json.loads(line) for line in (NAMES / "test-new-names.jsonl").read_text(encoding="utf-8").splitlines()]
    known = {*re.findall(r"\w+", (NAMES / "train.jsonl").read_text(encoding="utf-8"))}
    table = common.Table("course", "names", "head", "unseen names copied", "BLEU, unseen names", "BLEU, known names")
    for head, overrides in {"copy-seq2seq": [], "seq2seq": [f"head={json.dumps(PLAIN_HEAD)}"]}.items():
        folder = RUNS / f"course-names-{head}"
        if not (folder / "bundle").exists():
            yaml = ROOT / "pipelines" / "translate-names.yaml"
            common.seqpipe("run", yaml, f"name={folder.name}", "train.threads=1", *overrides)
        scores = common.seqpipe_json("evaluate", folder / "bundle")
        answers = load(folder / "bundle")([row["text"] for row in rows])
        wanted = copied = 0
        for row, answer in zip(rows, answers, strict=True):
            unseen = {*re.findall(r"\w+", row["text"])} & {*re.findall(r"\w+", row["target"])} - known
            wanted += len(unseen)
            copied += len(unseen & {*re.findall(r"\w+", answer["generated_text"])})
        bleu = [f"{100 * scores[part]['bleu']:.1f}" for part in ("new-names", "test")]
        table.row(f"`{head}`", f"{100 * copied / wanted:.1f} % of {wanted}", *bleu)


EXPERIMENTS: Mapping[str, Callable[[], None]] = {
    "rnn": rnn,
    "memory": memory,
    "names": names,
}
PICTURES: Mapping[str, Callable[[], Figure]] = {
    "rnn": draw_rnn,
    "memory": draw_memory,
}


def main() -> None:
    parser = common.parser(__doc__)
    commands = parser.add_subparsers(dest="command")
    for name, experiment in EXPERIMENTS.items():
        commands.add_parser(name, help=experiment.__doc__)
    of_pictures = commands.add_parser("pictures", help=pictures.__doc__)
    of_pictures.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}; all without names")
    arguments = parser.parse_args()
    if arguments.command == "pictures":
        if unknown := {*arguments.names} - {*PICTURES}:
            of_pictures.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(PICTURES)}")
        pictures(arguments.names)
    elif arguments.command:
        EXPERIMENTS[arguments.command]()
    else:
        parser.print_help()


if __name__ == "__main__":
    main()
