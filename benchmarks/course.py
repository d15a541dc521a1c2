"""Experiments and pictures of the course, docs/course.

    python benchmarks/course.py rnn                 # loss by letter of Elman's language
    python benchmarks/course.py memory              # accuracy by distance of recurrent cells, and their learning curves
    python benchmarks/course.py lstm                # how far recurrent cells count
    python benchmarks/course.py gru                 # trains pipelines/pos.yaml with several encoders
    python benchmarks/course.py classification      # bag of words, convolution and LSTM on the same reviews
    python benchmarks/course.py tagging             # heads for tags, and the sequences that break the scheme
    python benchmarks/course.py seq2seq             # decoders with and without attention, by length
    python benchmarks/course.py attention           # all attention scores on one task
    python benchmarks/course.py names               # trains pipelines/translate-names.yaml with and without copying
    python benchmarks/course.py copying             # attention and copying of one translation by that model
    python benchmarks/course.py images              # trains pipelines/digits.yaml with several encoders
    python benchmarks/course.py places              # weights of the places of pictures, pooled by attention
    python benchmarks/course.py pictures            # draws all pictures of docs/course
    python benchmarks/course.py pictures rnn lstm   # draws some

The figures of an experiment are recorded in runs/results. Pictures are drawn from stored figures (benchmarks/results)
or from short computations; the same versions of the libraries draw the same bytes. PyTorch and matplotlib are imported
where they are used, so that tests can list the experiments and pictures at once.
"""

from __future__ import annotations

import json
import math
import random
import re
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
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


# 5 classification

CLASSIFIERS = {
    "bag": "{use: bag, hidden: 180}",
    "cnn": "{use: cnn, filters: 60, widths: [3, 5, 7]}",
    "lstm": "{use: lstm, hidden: 90}",
}
REVIEW = "the soup was not bad at all"


def bundle_of(name: str, pipeline: str, *overrides: str) -> Path:
    """Return the bundle of the run course-NAME of a pipeline, which is trained if it is not there."""
    folder = RUNS / f"course-{name}"
    if not (folder / "bundle").exists():
        yaml = ROOT / "pipelines" / f"{pipeline}.yaml"
        common.seqpipe("run", yaml, f"name={folder.name}", "train.threads=1", *overrides)
    return folder / "bundle"


def classification() -> None:
    """Train a bag of words, a convolution and an LSTM on the same reviews, and read a review word by word."""
    from seqpipe import load
    from seqpipe.training.checkpoint import load_best

    bundles = {
        encoder: bundle_of(f"classification-{encoder}", "sentiment-cnn", f"encoder={yaml}")
        for encoder, yaml in CLASSIFIERS.items()
    }
    parts = {"test": "accuracy, test", "new-templates": "accuracy, new templates"}
    table = common.Table("course", "classification", "encoder", "parameters", *parts.values())
    for encoder, bundle in bundles.items():
        weights = load_best(bundle.parent / "checkpoints")
        size = sum(tensor.numel() for name, tensor in weights.items() if name.startswith("encoder."))
        scores = common.seqpipe_json("evaluate", bundle)
        table.row(f"`{encoder}`", f"{size:,}", *(f"{100 * scores[part]['accuracy']:.1f} %" for part in parts))
    words = REVIEW.split()
    by_word = common.Table("course", "classification_words", "encoder", *words)
    for encoder, bundle in bundles.items():
        answers = load(bundle)([" ".join(words[: i + 1]) for i in range(len(words))], n_best="all")
        shares = (next(label["score"] for label in labels if label["label"] == "positive") for labels in answers)
        by_word.row(f"`{encoder}`", *(f"{share:.2f}" for share in shares))


def draw_classification() -> Figure:
    """Draw the probability of `positive` after each word of a review."""
    figure = new_figure(height=3.2)
    axes = figure.subplots()
    for (name, figures), colour, style in zip(
        stored("course", "classification_words").items(), COLOURS, "osD", strict=False
    ):
        axes.plot([*figures], [*figures.values()], f"{style}-", color=colour, label=name.strip("`"))
    axes.axhline(0.5, color=GREY, linewidth=1)
    axes.set(ylabel="probability of positive", ylim=(-0.03, 1.03), xlabel="the review up to this word")
    figure.legend(loc="outside right center", frameon=False)
    return figure


# 6 tagging

TAGGERS = {
    "`tags`": ["head.use=tags"],
    "`crf`, `constraints: false`": ["head.constraints=false"],
    "`crf`": [],
}
TAGS = ("O", *(f"{prefix}-{label}" for label in ("city", "time") for prefix in "BIES"))
FEW = 300  # sentences


def tagging() -> None:
    """Train three heads on all sentences and on few, and count the tag sequences that break the scheme."""
    from seqpipe.answers import tagging_schemes
    from seqpipe.api.model import load
    from seqpipe.training.checkpoint import load_best

    folder = ROOT / "pipelines" / "data" / "assistant-en"
    sentences = (folder / "train.conll").read_text(encoding="utf-8").strip().split("\n\n")
    few = common.PREPARED / "course" / "few.conll"
    few.parent.mkdir(parents=True, exist_ok=True)
    few.write_text("\n\n".join(sentences[:FEW]) + "\n", encoding="utf-8")
    settings = {"all": (len(sentences), []), "few": (FEW, [f"data.train={few}", "train.epochs=40"])}
    columns = [f"{what}, {count:,} sentences" for count, _ in settings.values() for what in ("span F1", "invalid")]
    table = common.Table("course", "tagging", "head", *columns)
    text = (folder / "test-new-templates.conll").read_text(encoding="utf-8")
    for number, (head, of_head) in enumerate(TAGGERS.items()):
        cells = []
        for size, (_, of_size) in settings.items():
            model = load(bundle := bundle_of(f"tagging-{number}-{size}", "ner", *of_head, *of_size))
            tags = model.predictor.kind.parts[""].labels
            invalid = count = 0
            for sentence in text.strip().split("\n\n"):
                words = [line.split("\t")[0] for line in sentence.splitlines() if "\t" in line]
                docs = model.predictor.docs([{"words": words}])
                chosen = model.run(model.predictor.featurizer.collate(docs))["tags"][0]
                invalid += tagging_schemes.strict_problem([tags[i] for i in chosen], "BIOES") is not None
                count += 1
            scores = common.seqpipe_json("evaluate", bundle)
            cells += [f"{100 * scores['new-templates']['f1']:.1f} %", f"{100 * invalid / count:.1f} %"]
        table.row(head, *cells)
    # The picture shows the last head on all sentences; the labels are the same on few.
    weights = load_best(RUNS / f"course-tagging-{number}-all" / "checkpoints")["heads.0.transitions"]
    transitions = common.Table("course", "tagging_transitions", "from", *TAGS)
    allowed = tagging_schemes.allowed(tags)[2]
    places = [tags.index(tag) for tag in TAGS]
    for row in places:
        transitions.row(tags[row], *(f"{weights[row, i]:.2f}" if allowed[row, i] else "–" for i in places))


def draw_tagging() -> Figure:
    """Draw learned transitions between tags; the scheme forbids those that are crossed out."""
    rows = stored("course", "tagging_transitions")
    figure = new_figure(5.6, 4.6)
    axes = figure.subplots()
    scores = [[float("nan") if cell == "–" else float(cell) for cell in row.values()] for row in rows.values()]
    most = max(abs(score) for row in scores for score in row if score == score)
    image = axes.imshow(scores, cmap="PuOr", vmin=-most, vmax=most)
    for y, row in enumerate(scores):
        for x, score in enumerate(row):
            text = "×" if score != score else f"{round(score, 1) + 0:.1f}"
            colour = "white" if abs(score) > 0.7 * most else "black"
            axes.text(x, y, text, ha="center", va="center", fontsize=8, color=colour)
    axes.set(xlabel="to the next tag", ylabel="from a tag")
    axes.set_xticks(range(len(rows)), [*rows], rotation=90)
    axes.set_yticks(range(len(rows)), [*rows])
    figure.colorbar(image, label="transition score")
    return figure


# 7 seq2seq

LENGTHS, LONGEST, REVERSED, HELD_OUT = (3, 6, 9, 12, 15, 18), 15, 6000, 200
DECODERS = {
    "`attention: none`": ["head.attention=none"],
    "`attention: additive`": ["head.attention=additive", "head.input_feeding=false"],
}


def seq2seq() -> None:
    """Train two decoders to reverse texts of 1 to 15 letters, and test them by length."""
    from seqpipe import load

    folder, draw = common.PREPARED / "course", random.Random(1)
    data = []
    for part, size in {"train": REVERSED, "dev": HELD_OUT, "test": HELD_OUT}.items():
        texts = ["".join(draw.choices(string.ascii_lowercase, k=draw.randint(1, LONGEST))) for _ in range(size)]
        common.write_jsonl(folder / f"{part}.jsonl", ({"text": text, "reversed": text[::-1]} for text in texts))
        data.append(f"data.{part}={folder}/{part}.jsonl")
    tests = {n: ["".join(draw.choices(string.ascii_lowercase, k=n)) for _ in range(HELD_OUT)] for n in LENGTHS}
    table = common.Table("course", "seq2seq", "head", *(f"{n} letters" for n in LENGTHS))
    for name, overrides in DECODERS.items():
        kind = name.strip("`").split()[-1]
        model = load(bundle_of(f"seq2seq-{kind}", "reverse", *overrides, *data, "train.epochs=12"))
        cells = []
        for texts in tests.values():
            answers = (answer["generated_text"] for answer in model(texts))
            right = sum(answer == text[::-1] for answer, text in zip(answers, texts, strict=True))
            cells.append(f"{100 * right / len(texts):.1f} %")
        table.row(name, *cells)


def draw_seq2seq() -> Figure:
    """Draw the share of exact answers by the length of the source."""
    figure = new_figure(height=3.2)
    axes = figure.subplots()
    for (name, figures), colour, style in zip(stored("course", "seq2seq").items(), COLOURS, "os", strict=False):
        axes.plot(
            LENGTHS,
            [float(cell.split()[0]) for cell in figures.values()],
            f"{style}-",
            color=colour,
            label=name.strip("`"),
        )
    axes.axvline(LONGEST, color=GREY, linewidth=1, linestyle=":", label="longest in training")
    axes.set(xlabel="letters of the source", ylabel="exact answers, %", ylim=(-3, 103), xticks=LENGTHS)
    figure.legend(loc="outside right center", frameon=False)
    return figure


# 8 attention

ATTENTIONS = ("none", "dot", "scaled-dot", "bilinear", "additive", "key-only", "concat-tanh", "multi-head", "location")
SHORTEST_SOURCE, LONGEST_SOURCE, ATTENTION_STEPS, ATTENTION_TESTED = 4, 10, 400, 500
SHOWN_SOURCE = "attention"


def reverse_words(score: Any) -> tuple[int, float, torch.Tensor | None]:
    """Train a small encoder-decoder to write letters backward with an attention score.

    Return the number of parameters of its attention, the share of exact answers to new texts, and the weights (N, S)
    for one word; None without attention.
    """
    import torch
    from torch import nn
    from torch.nn import functional as F

    from seqpipe.config.signature import construct
    from seqpipe.nn.search import SearchOptions
    from seqpipe_plugins.encoders.lstm import LSTM
    from seqpipe_plugins.heads.seq2seq import Seq2Seq

    torch.set_num_threads(1)
    torch.manual_seed(1)
    random_source, vocabulary = random.Random(1), ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *string.ascii_lowercase]
    embedding, encoder = nn.Embedding(len(vocabulary), 32), construct(LSTM, 32, {}, hidden=32)
    heads = 4 if score == "multi-head" else 1
    sizes = {"hidden": 64, "embedding_dim": 32, "units": 64, "heads": heads}
    head = Seq2Seq([64], vocabulary, attention=score, input_feeding=False, **sizes)
    parameters = [*embedding.parameters(), *encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.004)

    def tensors(texts: Sequence[str]) -> tuple[list[dict[str, torch.Tensor]], torch.Tensor]:
        """Return the encoded sources, and the ids of the targets (B, N)."""
        width = max(map(len, texts))
        ids = [[vocabulary.index(letter) for letter in text] for text in texts]
        target = torch.tensor([[*row[::-1], 3] + [0] * (width - len(row)) for row in ids])
        source = torch.tensor([row + [0] * (width - len(row)) for row in ids])  # (B, T)
        return [{**encoder(embedding(source), source > 0), "mask": source > 0}], target

    def draw(count: int) -> list[str]:
        lengths = (random_source.randint(SHORTEST_SOURCE, LONGEST_SOURCE) for _ in range(count))
        return ["".join(random_source.choices(string.ascii_lowercase, k=length)) for length in lengths]

    for _ in range(ATTENTION_STEPS):
        sources, target = tensors(draw(64))
        optimizer.zero_grad()
        head.loss(sources, target, target > 0).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    head.eval()
    with torch.no_grad():
        sources, target = tensors(draw(ATTENTION_TESTED))
        search = SearchOptions(beams=1, n_best=1, max_length=target.shape[1])
        answers = head.decide(sources, options=search)["tokens"][:, 0]  # (B, N), 0 after the end
        exact = (F.pad(answers, (0, target.shape[1] - answers.shape[1])) == target).all(1).double().mean()
        sources, target = tensors([SHOWN_SOURCE])
        weights = head.explain(sources, target[:, None]).get("attention")
    size = sum(tensor.numel() for name, tensor in head.named_parameters() if name.startswith("attention."))
    return size, float(exact), None if weights is None else weights[0, : len(SHOWN_SOURCE)]


def attention() -> None:
    """Train a small encoder-decoder to write letters backward with each attention score, and record its weights."""
    table = common.Table("course", "attention", "score", "parameters of the attention", "exact answers")
    rows = {}
    for score in ATTENTIONS:
        size, exact, weights = reverse_words(score)
        table.row(f"`{score}`", f"{size:,}", f"{100 * exact:.1f} %")
        if weights is not None:
            rows[score] = weights.tolist()
    by_score = common.Table("course", "attention_weights", "score", *map(str, range(1, len(SHOWN_SOURCE) + 1)))
    for score, steps in rows.items():
        by_score.row(f"`{score}`", *(" ".join(f"{100 * weight:.0f}" for weight in step) for step in steps))


def draw_attention() -> Figure:
    """Draw the weights of each score: written letters as rows, those of the source as columns."""
    rows = stored("course", "attention_weights")
    figure = new_figure(8.4, 4.6)
    panels = iter(figure.subplots(2, 4).flat)
    letters = range(len(SHOWN_SOURCE))
    for (name, figures), axes in zip(rows.items(), panels, strict=False):
        weights = [[int(percent) for percent in step.split()] for step in figures.values()]
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=100)
        axes.set_title(name.strip("`"), fontsize=10)
        axes.set_xticks(letters, SHOWN_SOURCE)
        axes.set_yticks(letters, SHOWN_SOURCE[::-1])
    for axes in panels:
        axes.set_axis_off()
    return figure


# 9 copying

NAMES = ROOT / "pipelines" / "data" / "translation-names"
PLAIN_HEAD = {"use": "seq2seq", "hidden": 160, "embedding_dim": 96, "dropout": 0.2}
PLAIN_HEAD |= {"target_tokenizer": {"use": "words", "min_count": 6, "detokenize": True}}
COPIED = "Lujokea falls asleep now, but she did not see this bed."  # of test-new-names


def names() -> None:
    """Train with and without copying, and measure BLEU and the share of unseen names that are in the translation."""
    from seqpipe import load

    rows = [json.loads(line) for line in (NAMES / "test-new-names.jsonl").read_text(encoding="utf-8").splitlines()]
    known = {*re.findall(r"\w+", (NAMES / "train.jsonl").read_text(encoding="utf-8"))}
    heads = {"copy-seq2seq": [], "seq2seq": [f"head={json.dumps(PLAIN_HEAD)}"]}
    bundles = {head: bundle_of(f"names-{head}", "translate-names", *overrides) for head, overrides in heads.items()}
    table = common.Table("course", "names", "head", "unseen names copied", "BLEU, unseen names", "BLEU, known names")
    for head, bundle in bundles.items():
        scores = common.seqpipe_json("evaluate", bundle)
        answers = load(bundle)([row["text"] for row in rows])
        wanted = copied = 0
        for row, answer in zip(rows, answers, strict=True):
            unseen = {*re.findall(r"\w+", row["text"])} & {*re.findall(r"\w+", row["target"])} - known
            wanted += len(unseen)
            copied += len(unseen & {*re.findall(r"\w+", answer["generated_text"])})
        bleu = [f"{100 * scores[part]['bleu']:.1f}" for part in ("new-names", "test")]
        table.row(f"`{head}`", f"{100 * copied / wanted:.1f} % of {wanted}", *bleu)


def copying() -> None:
    """Record the attention and the probability of generating of each word of a translation by the copying model."""
    from seqpipe import load

    explained = load(bundle_of("names-copy-seq2seq", "translate-names")).explain(COPIED)
    (attention,), (origins,) = explained.attentions, explained.copied.values()
    source = [f"{number} {COPIED[start:end]}" for number, (start, end) in enumerate(attention.places, 1)]
    table = common.Table("course", "copying", "written", "generating", *source)
    for number, (origin, weights) in enumerate(zip(origins, attention.mean, strict=True), 1):
        table.row(f"{number} {origin.token}", f"{origin.generating:.2f}", *(f"{weight:.2f}" for weight in weights))


def draw_copying() -> Figure:
    """Draw attention and the probability of generating for each word of a translation."""
    rows = stored("course", "copying")
    written = [name.split(" ", 1)[1] for name in rows]
    source = [name.split(" ", 1)[1] for name in next(iter(rows.values())) if name != "generating"]
    figure = new_figure(7.2, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=[len(source), 3], sharey=True)
    left.imshow([[*row.values()][1:] for row in rows.values()], cmap="Blues", vmin=0, vmax=1, aspect="auto")
    left.set(title="attention")
    left.set_xticks(range(len(source)), source, rotation=60, ha="right")
    left.set_yticks(range(len(written)), written)
    right.barh(range(len(written)), [row["generating"] for row in rows.values()], color=COLOURS[1])
    right.set(title="p", xlim=(0, 1))
    return figure


# 10 transformer

SMALL_TRANSFORMER = {"use": "transformer", "layers": 2, "heads": 4}
TRANSFORMERS: Mapping[str, tuple[Mapping[str, Any], float]] = {  # options, and the share of steps for warm-up
    "pre norm, 2 layers": ({}, 0.1),
    "pre norm, 2 layers, no positions": ({"positions": "none"}, 0.1),
    "pre norm, 6 layers": ({"layers": 6}, 0.1),
    "post norm, 6 layers": ({"layers": 6, "norm": "post"}, 0.1),
    "pre norm, 6 layers, no warm-up": ({"layers": 6}, 0.0),
    "post norm, 6 layers, no warm-up": ({"layers": 6, "norm": "post"}, 0.0),
}


def transformer() -> None:
    """Compare pre and post norm, depth, heads and positions of a Transformer that tags parts of speech."""
    table = common.Table("course", "transformer", "encoder", "accuracy, test", "accuracy, new templates")
    for number, (row, (options, warmup)) in enumerate(TRANSFORMERS.items(), 1):
        overrides = {
            "embedding": {"use": "lookup", "dim": 64, "word_dropout": 0.1},
            "encoder": {**SMALL_TRANSFORMER, **options},
            "train.schedule.warmup_ratio": warmup,
            "train.epochs": 6,
        }
        scores = train(f"course-transformer-{number}", "pos", overrides)
        table.row(row, *(f"{100 * scores[part]['accuracy']:.1f}" for part in ("test", "new-templates")))


def draw_transformer() -> Figure:
    """Draw sinusoidal positions, and the gradient norm of each layer of 12 before training, with pre and post norm."""
    import torch

    from seqpipe_plugins.encoders.transformer import Transformer

    figure = new_figure(7.2)
    left, right = figure.subplots(1, 2)
    silent = torch.zeros(1, 48, 32), torch.ones(1, 48).bool()
    positions = Transformer(32, layers=1).positions
    assert positions is not None
    left.imshow(positions(silent[0]).T, cmap="coolwarm", aspect="auto")
    left.set(xlabel="position t", ylabel="component i", title="p(t)")
    for norm, colour, style in (("pre", COLOURS[0], "o-"), ("post", COLOURS[1], "s--")):
        torch.manual_seed(0)
        model = Transformer(64, layers=12, norm=norm, dropout=0.0)
        output = torch.nn.Linear(64, 8)
        x, labels = torch.randn(16, 20, 64) / 8, torch.randint(8, (16 * 20,))
        states = model(x, torch.ones(16, 20).bool())["x"]
        torch.nn.functional.cross_entropy(output(states).flatten(0, 1), labels).backward()
        norms = [float(layer.feedforward[3].weight.grad.norm()) for layer in model.layers]
        right.plot(range(1, 13), norms, style, color=colour, label=f"norm: {norm}")
    right.set(xlabel="layer", ylabel="norm of the gradient of W2", ylim=(0, None), xticks=range(1, 13))
    right.set_title("before training")
    right.legend()
    return figure


# 11 pretraining

ASSISTANT = "data/assistant-en"
WORDS = {"use": "words", "lowercase": True, "fold_digits": True, "min_count": 2}
SUBWORDS = {"use": "wordpiece", "max_size": 2000}
SKIP_GRAM, ELMO, BERT = (f"course-{name}" for name in ("skip-gram", "bilm", "mlm"))  # runs on 3,000 unlabelled texts
PRETRAINED: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # a run to its YAML and overrides
    SKIP_GRAM: ("mlm", {"encoder": None, "head": {"use": "skip-gram", "window": 3}, "train.epochs": 15}),
    ELMO: (
        "bilm",
        {
            "data.reader": "conll",
            **{f"data.{part}": f"{ASSISTANT}/{part}.conll" for part in ("train", "dev")},
            "data.test": {"test": f"{ASSISTANT}/test.conll"},
        },
    ),
    BERT: ("mlm", {"tokenizer": SUBWORDS, "encoder.dropout": 0.1}),
}


def tagger(tokens: Any, embedding: Any, encoder: Any, head: str = "tags", rate: float = 0.004) -> dict[str, Any]:
    """Return the overrides of pipelines/ner.yaml that train a tagger on the 400 labelled requests of dev."""
    return {
        "data.train": f"{ASSISTANT}/dev.conll",
        "data.dev": None,
        "tokenizer": tokens,
        "embedding": embedding,
        "encoder": encoder,
        "head": {"use": head, "scheme": "BIOES", "dropout": 0.3},
        "train.epochs": 30,
        "train.optimizer.lr": rate,
    }


def small_bert(init: str | None, head: str = "tags", tokens: Mapping[str, Any] = SUBWORDS) -> dict[str, Any]:
    """Return the overrides of a tagger on a Transformer over subwords, from random weights or from those of a run."""
    start = {"init": init} if init else {}
    transformer = {"use": "transformer", "layers": 2, "feedforward": 256, "activation": "gelu", "dropout": 0.1}
    embedding = {"use": "lookup", "dim": 96, "dropout": 0.1, **start}
    return tagger({**tokens, **start}, embedding, [transformer | start, {"use": "words"}], head, 0.001)


def elmo(init: str) -> dict[str, Any]:
    """Return the overrides of a tagger on the layers of a bidirectional language model."""
    embedding = {"use": "elmo", "dim": 96, "widths": [1, 2, 3, 4], "hidden": 96, "dropout": 0.3, "init": init}
    return tagger(WORDS | {"init": init}, embedding, {"use": "lstm", "hidden": 100})


def pretraining() -> None:
    """Compare random word vectors, skip-gram, ELMo and a small BERT, without and with a CRF, on the same entities."""
    lstm, vectors = {"use": "lstm", "hidden": 100}, {"use": "lookup", "dim": 96, "word_dropout": 0.1, "dropout": 0.3}
    at = {run: f"../runs/{run}" for run in PRETRAINED}
    start = {"init": at[SKIP_GRAM]}
    spelling = {"use": "char-cnn", "dim": 96, "widths": [1, 2, 3, 4], "dropout": 0.3}
    rows = {
        "random vectors, BiLSTM": tagger(WORDS, vectors, lstm),
        "skip-gram vectors, BiLSTM": tagger(WORDS | start, vectors | start, lstm),
        "random vectors and spelling, BiLSTM": tagger(WORDS, [vectors, spelling], lstm),
        "ELMo, BiLSTM": elmo(at[ELMO]),
        "small BERT, not pretrained": small_bert(None),
        "small BERT": small_bert(at[BERT]),
        "small BERT, CRF": small_bert(at[BERT], "crf"),
        "small BERT, not pretrained, CRF": small_bert(None, "crf"),
    }
    for run, (yaml, overrides) in PRETRAINED.items():
        train(run, yaml, overrides)
    table = common.Table("course", "pretraining", "model", "F1, test", "F1, new templates")
    for number, (row, overrides) in enumerate(rows.items(), 1):
        scores = train(f"course-tagger-{number}", "ner", overrides)
        table.row(row, *(f"{100 * scores[part]['f1']:.1f}" for part in ("test", "new-templates")))


def draw_pretraining() -> Figure:
    """Draw the F1 of each tagger of the experiment."""
    figure = new_figure(7.2, 3.2)
    axes = figure.subplots()
    rows = stored("course", "pretraining")
    places = range(len(rows))
    for shift, part, colour in ((-0.2, "F1, test", COLOURS[0]), (0.2, "F1, new templates", COLOURS[1])):
        axes.barh(
            [place + shift for place in places], [row[part] for row in rows.values()], 0.4, color=colour, label=part
        )
    axes.set(xlim=(0, 100), xlabel="F1, %", yticks=places)
    axes.set_yticklabels([*rows])
    axes.invert_yaxis()
    axes.legend(loc="center right")
    return figure


def train(run: str, yaml: str, overrides: Mapping[str, Any]) -> Any:
    """Run a shipped pipeline with overrides under a name, unless that run exists, and return its scores."""
    if not (RUNS / run / "bundle").exists():
        values = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
        common.seqpipe("run", ROOT / "pipelines" / f"{yaml}.yaml", f"name={run}", "train.threads=1", *values)
    return common.seqpipe_json("evaluate", RUNS / run / "bundle")


# 12 gpt

SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "temperature 0.7": {"temperature": 0.7},
    "temperature 1": {"temperature": 1.0},
    "temperature 1.5": {"temperature": 1.5},
    "temperature 1.5, top_k 5": {"temperature": 1.5, "top_k": 5},
    "temperature 1.5, top_p 0.9": {"temperature": 1.5, "top_p": 0.9},
}
TALES = 48  # that are written for a row


def gpt() -> None:
    """Write tales with pipelines/gpt.yaml by several ways of sampling, and count what is wrong in them."""
    sys.path.insert(0, str(ROOT / "pipelines" / "data"))
    from make_tales import NAMED, WHO

    from seqpipe import load

    train("course-gpt", "gpt", {})
    model = load(RUNS / "course-gpt" / "bundle")
    known = {*re.findall(r"\w+", (ROOT / "pipelines/data/tales/train.txt").read_text(encoding="utf-8"))}
    prompts = [f"{NAMED[i % len(NAMED)]} the {WHO[i % len(WHO)]}" for i in range(TALES)]
    table = common.Table(
        *("course", "gpt", "decoding", "perplexity of the texts", "texts with unknown words"),
        *("another thing is taken than found", "more than two names", "different groups of three words"),
    )
    for row, options in SAMPLING.items():
        texts, nats, tokens = [], 0.0, 0
        for seed, prompt in enumerate(prompts):
            sampling = {"seed": seed, **options} if options else {}
            text = model(prompt, max_length=110, **sampling)["generated_text"]
            nats, tokens = nats - model.log_probability(str(text)), tokens + text.tokens
            texts.append(str(text))
        unknown = sum(not {*re.findall(r"\w+", text)} <= known for text in texts)
        names = sum(len({*re.findall(r"\w+", text)} & {*NAMED}) > 2 for text in texts)
        confused = sum(taken_thing(text) != found_thing(text) for text in texts)
        words = [re.findall(r"\w+|[^\w\s]", text) for text in texts]
        groups = {tuple(text[i : i + 3]) for text in words for i in range(len(text) - 2)}
        shares = (f"{100 * count / TALES:.0f} %" for count in (unknown, confused, names))
        table.row(row, f"{math.exp(nats / tokens):.2f}", *shares, len(groups))


def found_thing(tale: str) -> str:
    """Return the thing that is found in a tale, such as kite of "a red kite"; "" without one."""
    thing = re.search(r"found an? (basket|[\w ]*?(?=\.))", tale)
    return thing[1].split()[-1] if thing and thing[1].split() else ""


def taken_thing(tale: str) -> str:
    """Return the thing that is taken along in a tale; "" without one."""
    thing = re.search(r"took the (\w+) with", tale)
    return thing[1] if thing else ""


def draw_gpt() -> Figure:
    """Draw a softmax at three temperatures, and the vectors that generation reads with and without a KV cache."""
    import numpy as np

    figure = new_figure(7.2)
    left, right = figure.subplots(1, 2)
    logits = np.array([3.0, 2.2, 1.5, 1.0, 0.2, -0.5, -1.0, -2.0])
    for number, temperature in enumerate((0.5, 1.0, 2.0)):
        p = np.exp(logits / temperature)
        places = np.arange(8) + 0.27 * (number - 1)
        left.bar(places, p / p.sum(), 0.27, color=COLOURS[number], label=f"temperature {temperature:g}")
    left.axvline(3.5, color=GREY, linestyle="--")
    left.text(3.6, 0.45, "top_k: 4 keeps\nthe left half", color="#333333")
    left.set(xlabel="token, by its logit", ylabel="probability", xticks=range(8))
    left.set_xticklabels([f"{logit:g}" for logit in logits])
    left.legend()
    tokens = np.arange(1, 65)
    right.plot(tokens, np.cumsum(tokens), "--", color=COLOURS[1], label="without a cache")
    right.plot(tokens, tokens, color=COLOURS[0], label="with a KV cache")
    right.set(xlabel="token that is generated", ylabel="tokens that a layer has computed", yscale="log")
    right.legend()
    return figure


# 13 evaluation

SPELLING = {"use": "char-cnn", "dim": 50, "widths": [2, 3, 4], "dropout": 0.3}
INTENTS: Mapping[str, Mapping[str, Any]] = {  # overrides of pipelines/intent-lstm.yaml
    "words": {},
    "words, calibrated": {"head.calibrate": True},
    "words and spelling": {"embedding": [{"use": "lookup", "dim": 50, "word_dropout": 0.3, "dropout": 0.3}, SPELLING]},
    "words, case kept": {"tokenizer.lowercase": False},
}


def with_form(source: Path, target: Path) -> None:
    """Copy a CoNLL file, with a comment that says whether a request is in lower case, as a speech recogniser writes."""
    texts = source.read_text(encoding="utf-8").strip().split("\n\n")
    forms = ("spoken" if text.split("\n", 1)[1].islower() else "written" for text in map(without_tags, texts))
    lines = (f"# form = {form}\n{text}\n\n" for form, text in zip(forms, texts, strict=True))
    target.write_text("".join(lines), encoding="utf-8")


def without_tags(text: str) -> str:
    """Return the lines of a text in CoNLL, without their tags."""
    return "\n".join(line.split("\t")[0] for line in text.split("\n"))


def evaluation() -> None:
    """Measure classifiers of intents on new templates, typos, another case and in groups, and their calibration."""
    from seqpipe import Run
    from seqpipe.evaluation.analysis import calibration

    new = RUNS / "data" / "forms" / "new.conll"
    new.parent.mkdir(parents=True, exist_ok=True)
    with_form(ROOT / "pipelines" / "data" / "assistant-en" / "test-new-templates.conll", new)
    table = common.Table(
        *("course", "evaluation", "model", "test", "new templates", "with typos", "in another case"),
        *("written", "spoken", "calibration error"),
    )
    for number, (row, overrides) in enumerate(INTENTS.items(), 1):
        run = f"course-intent-{number}"
        scores = train(run, "intent-lstm", overrides)
        perturbed = common.seqpipe_json("robustness", RUNS / run / "bundle", "--data", new, "--perturb", "typos,case")
        groups = common.seqpipe_json("evaluate", RUNS / run / "bundle", "--data", new, "--by", "form")[new.name]
        rows = [row for row in Run(RUNS / run).answers if row["set"] == "new-templates"]
        right = [row["answer"]["label"] == row["record"]["intent"] for row in rows]
        pairs = calibration([(row["answer"]["score"], is_right) for row, is_right in zip(rows, right, strict=True)])
        shares = [scores[part]["accuracy"] for part in ("test", "new-templates")]
        shares += [case["score"] for case in perturbed[new.name]["perturb"][1:]]
        shares += [groups[f"form={form}"]["accuracy"] for form in ("written", "spoken")]
        table.row(row, *(f"{100 * share:.1f}" for share in (*shares, pairs["ece"])))
        if number == 1:
            diagram = pairs["bins"]
    table = common.Table("course", "reliability", "mean probability", "share right", "answers")
    for place in diagram:
        table.row(f"{place['confidence']:.3f}", f"{place['accuracy']:.3f}", place["count"])


def draw_evaluation() -> Figure:
    """Draw the reliability diagram of the first classifier of the experiment, on new templates."""
    figure = new_figure(4.8, 4.2)
    axes = figure.subplots()
    rows = stored("course", "reliability")
    answers = [row["answers"] for row in rows.values()]
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="calibrated")
    axes.plot([*map(float, rows)], [row["share right"] for row in rows.values()], color=COLOURS[0], linewidth=1)
    sizes = [10 + 300 * count / sum(answers) for count in answers]
    axes.scatter([*map(float, rows)], [row["share right"] for row in rows.values()], sizes, COLOURS[0])
    axes.set(xlabel="mean probability of the answers in a bin", ylabel="share that is right")
    axes.set(xlim=(0, 1.05), ylim=(0, 1.05))
    axes.legend(loc="lower right")
    return figure


# languages

PARALLEL = ROOT / "pipelines" / "data" / "translation-names"
LANGUAGES = RUNS / "data" / "languages"
GROUPS = {  # a label to the kinds of nouns in the lexicon
    "person": ("man", "woman", "child"),
    "animal": ("animal",),
    "food": ("food", "drink"),
    "object": ("text", "vehicle", "clothes", "device", "thing", "door"),
    "place": ("room", "place"),
}
NUMBERS = {"two": "2", "three": "3", "four": "4", "five": "5", "zwei": "2", "drei": "3", "vier": "4", "fünf": "5"}


def labelled_nouns() -> dict[str, dict[str, str]]:
    """Return the label of each form of a noun, in lower case, by language."""
    sys.path.insert(0, str(PARALLEL.parent))
    from translation_words import nouns

    label_of = {kind: label for label, kinds in GROUPS.items() for kind in kinds}
    forms: dict[str, dict[str, str]] = {"en": {}, "de": {}}
    for kind, lexicon in nouns().items():
        for noun in lexicon:
            german = (noun.de, noun.de + noun.weak, noun.de_plural, noun.de_plural + "n")  # the last one is a dative
            forms["en"] |= dict.fromkeys((noun.en.lower(), noun.en_plural.lower()), label_of[kind])
            forms["de"] |= dict.fromkeys(map(str.lower, german), label_of[kind])
    return forms


def write_languages() -> None:
    """Write tagged sentences of both languages from the grammar of pipelines/data: nouns by their meaning, and names.

    The halves of the training texts say different things, so that no sentence has its translation in them. Numbers are
    digits in both languages.
    """
    forms = labelled_nouns()
    LANGUAGES.mkdir(parents=True, exist_ok=True)
    for part in ("train", "dev", "test", "test-new-names"):
        rows = [json.loads(line) for line in (PARALLEL / f"{part}.jsonl").read_text(encoding="utf-8").splitlines()]
        rows = [row for row in rows if not re.search(r"\bcooks?\b", row["text"])]  # a noun or a verb
        for language, field in {"en": "text", "de": "target"}.items():
            texts = []
            for row in rows:
                both = {*re.findall(r"\w{4,}", row["text"])} & {*re.findall(r"\w{4,}", row["target"])}
                names = {word for word in both if word[0].isupper() and word.lower() not in forms["de"]}
                words = [NUMBERS.get(word.lower(), word) for word in re.findall(r"\w+|[^\w\s]", row[field])]
                labels = ["name" if word in names else forms[language].get(word.lower()) for word in words]
                lines = (
                    f"{word}\t{f'B-{label}' if label else 'O'}\n" for word, label in zip(words, labels, strict=True)
                )
                texts.append("".join(lines) + "\n")
            if part == "train":
                texts = texts[:3000] if language == "en" else texts[3000:]
            (LANGUAGES / f"{part}.{language}.conll").write_text("".join(texts), encoding="utf-8")
            if part == "train":
                (LANGUAGES / f"labelled.{language}.conll").write_text("".join(texts[:500]), encoding="utf-8")
    for part in ("train", "dev", "test"):
        both = "".join(
            (LANGUAGES / f"{part}.{language}.conll").read_text(encoding="utf-8") for language in ("en", "de")
        )
        (LANGUAGES / f"{part}.both.conll").write_text(both, encoding="utf-8")


def languages() -> None:
    """Train taggers on English texts and test them on German ones, after pretraining on one language or both."""
    write_languages()
    tokens = {"use": "wordpiece", "max_size": 2000, "lowercase": True}
    shared, at = {"init": "../runs/course-both"}, LANGUAGES.relative_to(ROOT)
    for language in ("both", "en"):
        files = {f"data.{part}": f"../{at}/{part}.{language}.conll" for part in ("train", "dev")}
        files |= {"data.test": {"test": f"../{at}/test.{language}.conll"}}
        start = {} if language == "both" else shared
        train(f"course-{language}", "mlm", files | {"tokenizer": tokens | start, "train.epochs": 15})
    table = common.Table(
        *("course", "languages", "pretrained on, labels in", "English", "German", "German names"),
        *(f"German, {label}" for label in GROUPS),
    )
    shown = {"none": "nothing", "en": "English", "de": "German", "both": "both"}
    rows = (
        ("none", "en", False),
        ("en", "en", False),
        ("both", "en", False),
        ("both", "en", True),
        ("both", "de", False),
    )
    for pretrained, tagged, frozen in rows:
        init = None if pretrained == "none" else f"../runs/course-{pretrained}"
        overrides = small_bert(init, "tags", tokens | shared) | ({"embedding.freeze": True} if frozen else {})
        overrides |= {"train.epochs": 20, "data.train": f"../{at}/labelled.{tagged}.conll"}
        overrides |= {"data.test": {language: f"../{at}/test-new-names.{language}.conll" for language in ("en", "de")}}
        scores = train(f"course-{pretrained}-to-{tagged}{'-frozen' if frozen else ''}", "ner", overrides)
        german = scores["de"]["labels"]
        f1 = [scores["en"]["f1"], scores["de"]["f1"], *(german[label]["f1"] for label in ("name", *GROUPS))]
        row = f"{shown[pretrained]}, {shown[tagged]}" + (", embeddings frozen" if frozen else "")
        table.row(row, *(f"{100 * score:.1f}" for score in f1))


# 14 pictures and speech

DATA = ROOT / "pipelines" / "data"
DIGITS: Mapping[str, Any] = {"inputs.image.embedding": {"use": "image", "height": 8, "width": 8}, "train.epochs": 30}
OF_PICTURES: Mapping[str, Any] = {  # encoders by their rows of the table
    "`bag` of rows": {"use": "bag", "hidden": 96},
    "`lstm` over rows": {"use": "lstm", "hidden": 64, "dropout": 0.3},
    "`lenet`": {"use": "lenet", "filters": [32, 64, 128], "size": 3, "activation": "relu", "dropout": 0.3},
    "`resnet`": {"use": "resnet", "filters": [16, 32, 64], "positions": True, "dropout": 0.2},
}


def images() -> None:
    """Train pipelines/digits.yaml with several encoders."""
    from seqpipe.training.checkpoint import load_best

    table = common.Table("course", "images", "encoder", "parameters", "accuracy, dev", "accuracy, test")
    for number, (row, encoder) in enumerate(OF_PICTURES.items(), 1):
        overrides = {**DIGITS, "inputs.image.encoder": encoder}
        name = f"course-images-{number}"
        tests = {part: f"data/digits/{part}.jsonl" for part in ("dev", "test")}
        scores = train(name, "digits", {**overrides, "data.test": tests})
        weights = load_best(RUNS / name / "checkpoints")
        size = sum(tensor.numel() for tensor in weights.values())
        table.row(row, f"{size:,}", *(f"{100 * scores[part]['accuracy']:.1f} %" for part in ("dev", "test")))


def first_digits() -> list[dict[str, str]]:
    """Return the first test picture of each digit."""
    lines = (DATA / "digits" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    by_label = {record["label"]: record for record in map(json.loads, reversed(lines))}
    return [by_label[label] for label in sorted(by_label)]


def places() -> None:
    """Record the weights of 16 places of a picture of each digit, by a convolution and pooling by attention.

    A place sees 4 x 4 pixels. After more layers it sees the whole picture, and one place gets all the weight.
    """
    from seqpipe import load

    encoder = {"use": "lenet", "filters": [128], "size": 3, "activation": "relu", "positions": True, "dropout": 0.2}
    head = {"use": "label", "pool": "attention"}
    overrides = {**DIGITS, "inputs.image.encoder": encoder, "head": head, "export.explain": True}
    train("course-places", "digits", overrides)
    model = load(RUNS / "course-places" / "bundle")
    columns = [f"{row} {column}" for row in range(1, 5) for column in range(1, 5)]
    table = common.Table("course", "places", "digit", "answer", *columns)
    for record in first_digits():
        explanation = model.explain({"image": record["image"]})
        (attention,) = explanation.attentions
        assert attention.grid == (4, 4)
        weights = (f"{weight:.3f}" for weight in attention.weights)
        table.row(record["label"], explanation.answer["label"], *weights)


def draw_places() -> Figure:
    """Draw the weights of places over pictures of digits, and the spectrum of spoken digits."""
    import base64
    import io

    import numpy as np
    from PIL import Image

    from seqpipe.plugin import Mel

    figure = new_figure(7.2, 3.6)
    above, below = figure.subfigures(2, 1, height_ratios=[1, 1.7])
    rows = stored("course", "places")
    for panel, record in zip(above.subplots(1, 10), first_digits(), strict=True):
        picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(record["image"]))).convert("L"))
        answer, *weights = rows[record["label"]].values()
        panel.imshow(picture, cmap="gray_r")
        grid = np.array(weights, float).reshape(4, 4)
        panel.imshow(grid, cmap="Oranges", alpha=0.55, extent=(-0.5, 7.5, 7.5, -0.5), vmin=0)
        panel.set(title=f"{answer:g}", xticks=[], yticks=[])
    lines = (DATA / "spoken-digits" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    record = next(record for record in map(json.loads, lines) if len(record["target"].split()) == 5)
    spectrum = Mel(rate=8000, window=200, hop=80, fft=256, bands=40, highest=4000).rows(record["audio"], "sound")
    axes = below.subplots()
    axes.imshow(spectrum.T, cmap="magma", origin="lower", aspect="auto", extent=(0, len(spectrum) / 100, 0, 40))
    axes.set(title=record["target"], xlabel="seconds", ylabel="mel bands")
    return figure


EXPERIMENTS: Mapping[str, Callable[[], None]] = {
    "rnn": rnn,
    "memory": memory,
    "lstm": lstm,
    "gru": gru,
    "classification": classification,
    "tagging": tagging,
    "seq2seq": seq2seq,
    "attention": attention,
    "names": names,
    "copying": copying,
    "transformer": transformer,
    "pretraining": pretraining,
    "gpt": gpt,
    "evaluation": evaluation,
    "languages": languages,
    "images": images,
    "places": places,
}
PICTURES: Mapping[str, Callable[[], Figure]] = {
    "rnn": draw_rnn,
    "vanishing-gradients": draw_gradients,
    "memory": draw_memory,
    "lstm": draw_lstm,
    "gru": draw_gru,
    "classification": draw_classification,
    "tagging": draw_tagging,
    "seq2seq": draw_seq2seq,
    "attention": draw_attention,
    "copying": draw_copying,
    "transformer": draw_transformer,
    "pretraining": draw_pretraining,
    "gpt": draw_gpt,
    "evaluation": draw_evaluation,
    "images-and-speech": draw_places,
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
