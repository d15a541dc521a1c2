"""Experiments and pictures of the course, docs/course.

    python benchmarks/course.py rnn                 # loss by letter of Elman's language
    python benchmarks/course.py memory              # accuracy by distance of recurrent cells, and their learning curves
    python benchmarks/course.py lstm                # how far recurrent cells count
    python benchmarks/course.py gru                 # trains pipelines/pos.yaml with several encoders
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
        PICTURES[name]().savefig(COURSE / f"{name}.svg", metadata={"Date": None, "Creator": None})


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
SYMBOLS, BATCH, DIM, HIDDEN = 8, 64, 16, 64
STEPS, CHECKED, TESTED = 1500, 50, 2000  # training steps at most, steps between two checks, sequences of a test
SEEDS = (1, 2, 3)  # all for the longest distance, the first for the others
SHOWN_STEPS = (100, 200, 400, 800, 1500)  # of learning curves
CELLS = {  # the encoder, whether `longest_dependency` is the distance, and the learning rate
    "`rnn`": ("rnn", False, 0.003),
    "`lstm`": ("lstm", False, 0.003),
    "`gru`": ("gru", False, 0.003),
    "`lstm`, `longest_dependency`": ("lstm", True, 0.003),
    "`gru`, `longest_dependency`": ("gru", True, 0.003),
    "`rnn`, rate 0.01": ("rnn", False, 0.01),
    "`lstm`, rate 0.01": ("lstm", False, 0.01),
    "`gru`, rate 0.01": ("gru", False, 0.01),
}


def recall(cell: str, longest_dependency: int | None, rate: float, distance: int, seed: int) -> list[float]:
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
    optimizer = torch.optim.Adam(parameters, lr=rate)

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
    for name, (cell, is_spread, rate) in CELLS.items():
        cells = []
        for distance in DISTANCES:
            seeds = SEEDS if distance == max(DISTANCES) else SEEDS[:1]
            curves = [recall(cell, distance if is_spread else None, rate, distance, seed) for seed in seeds]
            cells.append(" / ".join(f"{100 * curve[-1]:.1f} % ({CHECKED * len(curve)} steps)" for curve in curves))
        by_distance.row(name, *cells)
        rows[name] = curves[0]  # of the longest distance
    by_steps = common.Table("course", "memory_curves", "cell", *(f"{steps} steps" for steps in SHOWN_STEPS))
    for name, curve in rows.items():
        ends = [curve[min(steps // CHECKED, len(curve)) - 1] for steps in SHOWN_STEPS]
        by_steps.row(name, *(f"{100 * accuracy:.1f} %" for accuracy in ends))


def draw_memory() -> Figure:
    """Draw the mean accuracy by distance, and the learning curves at the longest one."""
    figure = new_figure(7.2, 3.6)
    of_distance, of_steps = figure.subplots(1, 2, sharey=True)
    curves = stored("course", "memory_curves")
    for (name, figures), colour, marker in zip(stored("course", "memory").items(), COLOURS, "os^Dv", strict=False):
        means = []
        for cell in figures.values():
            accuracies = [float(text) for text in re.findall(r"([\d.]+) %", cell)]
            means.append(sum(accuracies) / len(accuracies))
        style = marker + ("-" if "longest" in name else "--")
        label = name.replace("`", "")
        of_distance.plot(DISTANCES, means, style, color=colour, label=label, markersize=5)
        of_steps.plot(SHOWN_STEPS, [float(text.split()[0]) for text in curves[name].values()], style, color=colour)
    for axes, ticks, title in ((of_distance, DISTANCES, "distance"), (of_steps, SHOWN_STEPS[1:], "training steps")):
        axes.axhline(100 / SYMBOLS, color=GREY, linewidth=1, label="chance" if axes is of_distance else None)
        axes.set(xlabel=title, xticks=ticks, ylim=(0, 105))
    of_distance.set_ylabel("accuracy, %")
    of_steps.set_title(f"distance {max(DISTANCES)}", fontsize=10)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def draw_gradients() -> Figure:
    """Draw the norm of dh(T)/dh(t) by distance, for recurrent weights of three sizes."""
    import numpy as np

    figure = new_figure()
    axes = figure.subplots()
    units, steps = 64, 60
    for radius, colour, style in zip((0.9, 1.2, 1.6), COLOURS, ("-", "--", ":"), strict=False):
        generator = np.random.default_rng(1)
        R = generator.normal(size=(units, units))
        R *= radius / np.abs(np.linalg.eigvals(R)).max()  # the largest eigenvalue is `radius`
        h, slopes = np.zeros(units), []
        for _ in range(steps):
            h = np.tanh(0.1 * generator.normal(size=units) + R @ h)
            slopes.append(1 - h**2)
        jacobian, norms = np.eye(units), [1.0]
        for slope in reversed(slopes):  # dh(T)/dh(t-1) = dh(T)/dh(t) diag(1 - h(t)²) R
            jacobian = jacobian @ (slope[:, None] * R)
            norms.append(float(np.linalg.norm(jacobian, 2)))
        axes.semilogy(range(steps + 1), norms, style, color=colour, label=f"largest eigenvalue of R: {radius}")
    axes.set(xlabel="steps back in time", ylabel="norm of dh(T)/dh(t)")
    axes.legend(frameon=False)
    return figure


# 3 lstm

MOST_TRAINED, MOST_COUNTED, COUNTING_STEPS, COUNTING_UNITS = 10, 40, 1500, 8
COUNTED = "ab."  # a text is n times a, n times b, and the end


def train_to_count(cell: str) -> tuple[Any, Callable[[str], torch.Tensor]]:
    """Train a language model on texts of n times a and n times b, for n of 1 to `MOST_TRAINED`.

    Return its encoder, and a function of a text that returns the logits of the next symbol: (T, symbols).
    """
    import torch
    from torch import nn
    from torch.nn import functional as F

    from seqpipe.config.signature import construct
    from seqpipe_plugins.encoders.gru import GRU
    from seqpipe_plugins.encoders.lstm import LSTM
    from seqpipe_plugins.encoders.rnn import RNN

    torch.manual_seed(1)
    encoders: Mapping[str, Any] = {"rnn": RNN, "lstm": LSTM, "gru": GRU}
    embedding, output = nn.Embedding(len(COUNTED), 4), nn.Linear(COUNTING_UNITS, len(COUNTED))
    encoder = construct(encoders[cell], 4, {}, hidden=COUNTING_UNITS, direction="forward")

    def predict(text: str) -> torch.Tensor:
        ids = torch.tensor([[*map(COUNTED.index, text)]])  # (1, T)
        logits: torch.Tensor = output(encoder(embedding(ids), torch.ones_like(ids).bool())["x"])
        return logits[0]

    modules = (embedding, encoder, output)
    optimizer = torch.optim.Adam([weight for module in modules for weight in module.parameters()], lr=0.01)
    for _ in range(COUNTING_STEPS):
        texts = ("." + "a" * n + "b" * n + "." for n in torch.randint(1, MOST_TRAINED + 1, (10,)).tolist())
        text = re.sub(r"\.+", ".", "".join(texts))
        optimizer.zero_grad()
        F.cross_entropy(predict(text)[:-1], torch.tensor([*map(COUNTED.index, text[1:])])).backward()
        nn.utils.clip_grad_norm_([weight for module in modules for weight in module.parameters()], 1.0)
        optimizer.step()
    return encoder, predict


def lstm() -> None:
    """Measure up to which n a cell that was trained on n of 1 to 10 counts n times a and n times b."""
    import torch

    torch.set_num_threads(1)
    table = common.Table("course", "lstm", "cell", "n counted, of 1 to 10", "n counted, of 11 to 40")
    for cell in ("rnn", "gru", "lstm"):
        _, predict = train_to_count(cell)
        counted = []
        for n in range(1, MOST_COUNTED + 1):
            with torch.no_grad():
                after = predict("." + "a" * n + "b" * n).argmax(1)[n + 1 :]  # (n), from the first b on
            if [COUNTED[index] for index in after] == [*"b" * (n - 1), "."]:
                counted.append(n)
        seen = sum(n <= MOST_TRAINED for n in counted)
        table.row(f"`{cell}`", f"{seen} of {MOST_TRAINED}", f"{len(counted) - seen} of {MOST_COUNTED - MOST_TRAINED}")


def draw_lstm() -> Figure:
    """Draw the cell of an LSTM that counts: each unit while it reads 8 times a and 8 times b."""
    import torch

    encoder, predict = train_to_count("lstm")
    text = "." + "a" * 8 + "b" * 8
    layer = encoder.layers[0]
    inputs: list[torch.Tensor] = []
    hook = encoder.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    with torch.no_grad():
        predict(text)
        hook.remove()
        state, cells = None, []
        for x_t in inputs[0][0]:  # (D)
            _, state = layer(x_t[None, None], state)
            cells.append(state[1][0, 0])
    cell = torch.stack(cells)  # (T, units)
    figure = new_figure(6.4, 3.2)
    axes = figure.subplots()
    swing = cell.amax(0) - cell.amin(0)
    for unit in range(cell.shape[1]):
        is_counter = unit == int(swing.argmax())
        colour, width = (COLOURS[0], 2.5) if is_counter else (GREY, 0.8)
        axes.plot(cell[:, unit].tolist(), color=colour, linewidth=width, label="counts" if is_counter else None)
    axes.set(xlabel="the symbol that was read", ylabel="cell c(t)", xticks=range(len(text)))
    axes.set_xticklabels([*text])
    axes.legend(frameon=False)
    return figure


# 4 gru

ENCODER_VARIANTS = {
    "`gru`, `direction: forward`": "{use: gru, hidden: 60, direction: forward}",
    "`gru`, `direction: backward`": "{use: gru, hidden: 60, direction: backward}",
    "`gru`, both directions": "{use: gru, hidden: 60}",
    "`gru`, both directions, `layers: 2`": "{use: gru, hidden: 60, layers: 2}",
    "`gru`, both directions, `reset: before`": "{use: gru, hidden: 60, reset: before}",
    "`lstm`, both directions": "{use: lstm, hidden: 60}",
    "`nested-lstm`, both directions": "{use: nested-lstm, hidden: 60}",
}


def gru() -> None:
    """Train pipelines/pos.yaml with several encoders, and measure the accuracy of its tags."""
    table = common.Table("course", "gru", "encoder", "accuracy", "accuracy, new templates")
    for number, (name, encoder) in enumerate(ENCODER_VARIANTS.items(), 1):
        run = f"course-gru-{number}"
        common.seqpipe(
            "train", ROOT / "pipelines" / "pos.yaml", f"name={run}", f"encoder={encoder}", "train.threads=1", "-q"
        )
        scores = common.seqpipe_json("evaluate", RUNS / run, "-q")
        table.row(name, *(f"{100 * scores[part]['accuracy']:.1f}" for part in ("test", "new-templates")))


def draw_gru() -> Figure:
    """Draw the update gates of a GRU whose units start with different lengths of memory, before any training."""
    import torch

    from seqpipe.config.signature import construct
    from seqpipe_plugins.encoders.gru import GRU

    torch.manual_seed(1)
    hidden, steps = 32, 60
    figure = new_figure(6.8, 3.2)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, longest, title in zip(panels, (None, 50), ("random biases", "longest_dependency: 50"), strict=True):
        options = {"longest_dependency": longest} if longest else {}
        layer = construct(GRU, 8, {}, hidden=hidden, direction="forward", **options).layers[0]
        h, gates = torch.zeros(hidden), []
        with torch.no_grad():
            for x_t in torch.randn(steps, 8):
                inward = layer.weight_ih_l0 @ x_t + layer.bias_ih_l0
                recurrent = layer.weight_hh_l0 @ h + layer.bias_hh_l0
                r, z = torch.sigmoid(inward + recurrent)[: 2 * hidden].split(hidden)
                n = torch.tanh(inward[2 * hidden :] + r * recurrent[2 * hidden :])
                h = (1 - z) * n + z * h
                gates.append(z)
        gate = torch.stack(gates)  # (T, units)
        image = axes.imshow(gate[:, gate.mean(0).argsort()].T.numpy(), vmin=0, vmax=1, cmap="cividis", aspect="auto")
        axes.set(title=title, xlabel="step t")
    panels[0].set_ylabel("unit")
    figure.colorbar(image, ax=panels, label="update gate z(t)")
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
    "lstm": lstm,
    "gru": gru,
    "names": names,
}
PICTURES: Mapping[str, Callable[[], Figure]] = {
    "rnn": draw_rnn,
    "vanishing-gradients": draw_gradients,
    "memory": draw_memory,
    "lstm": draw_lstm,
    "gru": draw_gru,
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
