"""What `seqpipe init` chooses, against other tools: for text classification by set and size, for pairs, for spelling.

    python benchmarks/defaults.py --data FOLDER                    # every set and size, one seed
    python benchmarks/defaults.py --data FOLDER --only sib200_zho --sizes 300 --seeds 3
    python benchmarks/defaults.py --data FOLDER --only banking77 --speed   # the n-grams against fastText, one core
    python benchmarks/defaults.py --data FOLDER --files            # files as they are: pairs of texts, pronunciations
    python benchmarks/defaults.py --ratings                        # generated ratings, against logistic regression

For each cell: `seqpipe init`, `seqpipe run` (its test score comes from onnxruntime, without PyTorch), then the SVM (C
chosen on dev), then fastText, whose autotune gets the seconds that our training took. Subsets are random with a seed;
a set without a dev part gives a tenth of its training records. A cell's line goes to runs/data/defaults/results.jsonl
as well; cells found there are not run again.

With `--files` each file is given to `init` as it is. A score of pairs is compared with a linear model of eight features
of their overlap, pronunciations with the published word error rate of an LSTM encoder-decoder (Gorman et al. 2020).

With `--ratings` the data is generated: 600 texts with one of five ratings, a fifth of which are random.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import math
import random
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import numpy as np
import yaml
from common import HERE, PREPARED, ROOT, RUNS

import seqpipe

SETS = (
    "sib200_zho",
    "subjectivity",
    "sentence_polarity",
    "movie_reviews",
    "snips",
    "crosswoz_intent",
    "banking77",
    "clinc150",
)
SIZES = (300, 3000)
PRONUNCIATIONS = {"gre": ("Greek", 18.9), "hin": ("Hindi", 6.7), "rum": ("Romanian", 10.7)}  # word error rates
WORDS_OF_RATINGS = (
    60,
    300,
    1500,
)  # words of a generated rating that say nothing: in small vocabularies texts are alike
RECORDS_A_LABEL = 5  # a subset has at least
PLACE = PREPARED / "defaults"
RESULTS = PLACE / "results.jsonl"
Rows = list[dict[str, Any]]


def cells(names: list[str], sizes: list[int], seeds: int, data: Path) -> Iterator[tuple[str, int | None, int, Path]]:
    """Name, size (None: the whole set), seed and folder of each cell; its files are written."""
    for name in names:
        train, dev, test = (parts := read(name, data))["train"], parts["dev"], parts["test"]
        labels = {label for row in train for label in (row["labels"] if "labels" in row else [row["label"]])}
        fitting: list[int | None] = [size for size in sizes if RECORDS_A_LABEL * len(labels) <= size < len(train)]
        for size in (*fitting, *([None] if 0 in sizes else [])):
            for seed in range(1, (seeds if size else 1) + 1):
                folder = PLACE / f"{name}-{size or 'all'}-{seed}"
                chosen = random.Random(seed).sample(train, size) if size else train
                for part, rows in (("train", chosen), ("dev", dev), ("test", test)):
                    common.write_jsonl(folder / f"{part}.jsonl", rows)
                yield name, size, seed, folder


def read(name: str, data: Path) -> dict[str, Rows]:
    """The records of a set, by part."""
    folder = common.data_path(data, name)
    if name == "clinc150":
        whole = json.loads((folder / "data_full.json").read_text())
        parts = {part: [{"text": text, "label": label} for text, label in whole[key]] for part, key in _CLINC}
    elif name == "snips":
        parts = {part: _snips(folder / file) for part, file in (("train", "train"), ("dev", "valid"), ("test", "test"))}
    else:
        parts = {part: _rows(path) for part in ("train", "dev", "test") for path in folder.glob(f"{part}.*")}
    if "dev" not in parts:
        shuffled = random.Random(0).sample(parts["train"], len(parts["train"]))
        parts["dev"], parts["train"] = shuffled[: len(shuffled) // 10], shuffled[len(shuffled) // 10 :]
    return parts


_CLINC = (("train", "train"), ("dev", "val"), ("test", "test"))


def _snips(folder: Path) -> Rows:
    texts, labels = ((folder / file).read_text(encoding="utf-8").splitlines() for file in ("seq.in", "label"))
    return [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]


def _rows(path: Path) -> Rows:
    """The records of a file: JSON lines, or a table with a header or of a label and a text."""
    if ".jsonl" in path.suffixes:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        records = [json.loads(line) for line in content.decode("utf-8").splitlines()]
        return [{key: r[key] for key in ("text", "label", "labels") if key in r} for r in records]
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            return [{"text": r["text"], "label": r["category"]} for r in csv.DictReader(file)]
        rows = [line.rstrip("\n").split("\t") for line in file]
    if "text" in rows[0]:
        text, label = rows[0].index("text"), rows[0].index("category")
        return [{"text": row[text], "label": row[label]} for row in rows[1:]]
    return [{"text": row[1], "label": row[0]} for row in rows]


def ours(folder: Path, seed: int) -> dict[str, Any]:
    """What `init` and `run` give: the bundle's score on the test set, and seconds."""
    config, run = folder / "pipeline.yaml", RUNS / f"defaults-{folder.name}"
    config.unlink(missing_ok=True)
    common.seqpipe("init", "--data", folder / "train.jsonl", "-o", config)
    clock = time.perf_counter()
    settings = (f"name={run.name}", f"train.seed={seed}", "data.unseen_labels=miss")  # a subset may lack a rare label
    common.seqpipe("run", config, *settings, "--fresh", "-q")
    seconds = time.perf_counter() - clock
    scores = next(iter(common.seqpipe_json("evaluate", run / "bundle", "-q").values()))
    figure = scores["accuracy"] if "accuracy" in scores else scores["micro_f1"]
    return {
        "score": 100 * figure,
        "seconds": seconds,
        "bundle_mb": _megabytes(run / "bundle"),
    }


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.iterdir()) / 1e6


def speed(folder: Path, python: Path) -> None:
    """Print seconds of training and texts a second on one core, ours and fastText's with as many epochs."""
    mine = ours(folder, 1)
    run = RUNS / f"defaults-{folder.name}"
    settings = yaml.safe_load((folder / "pipeline.yaml").read_text(encoding="utf-8"))
    epochs, dim = settings["train"]["epochs"], settings["embedding"]["dim"]
    history = (run / "checkpoints" / "metrics.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in history.splitlines()]
    texts = [json.loads(line)["text"] for line in (folder / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    model = seqpipe.load(run / "bundle", device="cpu", threads=1)
    model(texts)
    rate = len(texts) / statistics.median(common.seconds(lambda: model(texts)) for _ in range(9))
    seconds, size = sum(row["seconds"] for row in rows), _megabytes(run / "bundle")
    training, answering = seconds, rate
    print(f"ours: {mine['score']:.2f} %, training {seconds:.1f} s, {rate:,.0f} texts/s, bundle {size:.1f} MB")
    theirs = peer(python, "fasttext-speed", folder, epochs, dim)
    rate = theirs["texts_per_second"]
    print(f"fastText: {theirs['score']:.2f} %, training {theirs['seconds']:.1f} s, {rate:,.0f} texts/s")
    print(f"training: {seconds / theirs['seconds']:.2f} times fastText's time")
    figures = {
        "`ngrams` and a linear head": (
            round(mine["score"], 2),
            f"{training:.1f} s",
            round(answering),
            f"{size:.1f} MB",
        ),
        "fastText, as many epochs": (round(theirs["score"], 2), f"{theirs['seconds']:.1f} s", round(rate)),
    }
    whats = ("accuracy", "training", "texts/s", "bundle")
    rows = [{"row": row, "figures": dict(zip(whats, values, strict=False))} for row, values in figures.items()]
    ratios = {"training, time of as many epochs": theirs["seconds"] / training, "answering, texts/s": answering / rate}
    versions = common.peer_versions(python, "fasttext-wheel")
    common.record("defaults", "speed", rows, (), versions)
    compared = [{"row": row, "peer": "fastText", "ratio": round(ratio, 2)} for row, ratio in ratios.items()]
    common.record("defaults", "speed_ratios", compared, (), versions)


def peer(python: Path, *arguments: object, timeout: float | None = None) -> dict[str, Any]:
    command = [python, HERE / "peers" / "linear_text.py", *arguments]
    answer = subprocess.run(
        [*map(str, command)], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=timeout
    ).stdout
    result: dict[str, Any] = json.loads(answer)
    return result


def fasttext(python: Path, folder: Path, budget: int) -> dict[str, Any]:
    """fastText's autotune, which now and then never ends: then it is started once more, and has no score after that."""
    for _ in range(2):
        try:
            return peer(python, "fasttext", folder, budget, timeout=60 + 4 * budget)
        except subprocess.TimeoutExpired:
            print(f"{folder.name}: fastText's autotune was stopped after {60 + 4 * budget} s", flush=True)
    return {"score": math.nan}


def overlap(first: str, second: str) -> list[float]:
    """Return eight features of what two texts share: words, bigrams, n-grams of characters, lengths."""
    texts = [first.lower(), second.lower()]
    words = [text.split() for text in texts]
    sets = [[{*line} for line in words], [{*itertools.pairwise(line)} for line in words]]
    sets += [[{text[i : i + n] for i in range(len(text) - n + 1)} for text in texts] for n in (3, 4)]
    jaccard = [len(a & b) / max(1, len(a | b)) for a, b in sets]
    contained = [len(a & b) / max(1, min(len(a), len(b))) for a, b in (sets[0], sets[2])]
    lengths = [abs(len(a) - len(b)) / max(1, len(a) + len(b)) for a, b in (words, texts)]
    return [*jaccard, *contained, *lengths]


def linear_pairs(folder: Path) -> float:
    """Return the Pearson correlation on the test set of a linear model of the overlap of two texts."""
    parts = []
    for part in ("train", "test"):
        lines = (folder / f"{part}.tsv").read_text(encoding="utf-8").splitlines()[1:]
        rows = [line.split("\t") for line in lines]
        parts.append((np.array([[1.0, *overlap(*row[1:])] for row in rows]), np.array([float(row[0]) for row in rows])))
    (train, scores), (test, expected) = parts
    weights = np.linalg.lstsq(train, scores, rcond=None)[0]
    return float(np.corrcoef(test @ weights, expected)[0, 1])


def files(data: Path) -> None:
    """Train what `init` writes for files as they are; print and record the test score beside the reference."""
    cases = [("pairs of sentences", common.data_path(data, "pairs_sts") / "train.tsv", "pearson", None)]
    spelling = common.data_path(data, "g2p_sigmorphon2020")
    for code, (language, published) in PRONUNCIATIONS.items():
        cases.append((f"pronunciation, {language}", spelling / f"{code}_train.tsv", "exact_match", published))
    rows = []
    for name, file, metric, published in cases:
        config, run = PLACE / f"{file.parent.name}-{file.stem}.yaml", RUNS / f"defaults-{file.parent.name}-{file.stem}"
        config.unlink(missing_ok=True)
        common.seqpipe("init", file, "-o", config)
        common.seqpipe("run", config, f"name={run.name}", "--fresh", "-q")
        score = next(iter(common.seqpipe_json("evaluate", run / "bundle", "-q").values()))[metric]
        if published is None:
            figures = {"Pearson": round(score, 3), "linear model of the overlap": round(linear_pairs(file.parent), 3)}
        else:
            figures = {"word error rate": round(100 * (1 - score), 1), "published LSTM": published}
        print(name, figures, flush=True)
        rows.append({"row": name, "figures": figures})
    common.record("defaults", "files", rows, (), "")


def generate_ratings(seed: int, records: int, words: int) -> Rows:
    """Return texts of 8 to 40 invented words with a rating from 1 to 5, of which a fifth are random.

    Both kinds of words have Zipf frequencies. `words` of them say nothing. Each of 100 others, three in ten words of a
    text, has a place on the scale, and is drawn with a normal weight of its distance from the rating.
    """
    draw = random.Random(seed)
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    invented = list[str]()
    while len(invented) < words + 100:
        word = "".join(draw.choices(syllables, k=draw.randint(1, 3))) + draw.choice(("", "n", "s", "t"))
        if word not in invented:
            invented.append(word)
    frequencies, places = [1 / rank for rank in range(1, words + 101)], [draw.uniform(1, 5) for _ in range(100)]
    rows = []
    for _ in range(records):
        rating, length = draw.randint(1, 5), draw.randint(8, 40)
        weights = [math.exp(-(((place - rating) / 0.9) ** 2) / 2) for place in places]
        weights = [weight * frequency**0.7 for weight, frequency in zip(weights, frequencies, strict=False)]
        telling = sum(draw.random() < 0.3 for _ in range(length))
        text = draw.choices(invented[:100], weights, k=telling)
        text += draw.choices(invented[100:], frequencies[:words], k=length - telling)
        draw.shuffle(text)
        label = draw.randint(1, 5) if draw.random() < 0.2 else rating
        rows.append({"text": " ".join(text), "label": str(label)})
    return rows


def ratings(python: Path, seeds: int) -> None:
    """Print and record the accuracy on 1,000 generated ratings, ours and that of logistic regression, by vocabulary."""
    rows, gaps = [], list[float]()
    for words in WORDS_OF_RATINGS:
        scores: dict[str, list[float]] = {"`init`": [], "logistic regression": []}
        for seed in range(1, seeds + 1):
            generated, folder = generate_ratings(seed, 1600, words), PLACE / f"ratings-{words}-{seed}"
            for part, some in (("train", generated[:540]), ("dev", generated[540:600]), ("test", generated[600:])):
                common.write_jsonl(folder / f"{part}.jsonl", some)
            scores["`init`"].append(ours(folder, seed)["score"])
            scores["logistic regression"].append(peer(python, "logistic", folder)["score"])
        differences = [mine - theirs for mine, theirs in zip(*scores.values(), strict=True)]
        gaps += differences
        figures: dict[str, Any] = {who: round(statistics.mean(values), 2) for who, values in scores.items()}
        figures |= {"over it": f"{statistics.mean(differences):+.2f}"}
        figures |= {"by seed": ", ".join(f"{difference:+.1f}" for difference in differences)}
        print(words, scores, figures["over it"], flush=True)
        rows.append({"row": f"{words + 100:,} different words", "figures": figures})
    rows.append({"row": "mean", "figures": {"over it": f"{statistics.mean(gaps):+.2f}"}})
    common.record("defaults", "ratings", rows, (), common.peer_versions(python, "scikit-learn"))


def gap(row: dict[str, Any]) -> float:
    """Points over the better peer that has a score."""
    peers = [row[who]["score"] for who in ("svm", "fasttext") if not math.isnan(row[who]["score"])]
    return float(row["ours"]["score"] - max(peers))


def main() -> None:
    parser = common.parser(__doc__)
    common.add_data_option(parser)
    parser.add_argument("--only", nargs="+", choices=SETS, default=list(SETS), metavar="SET")
    parser.add_argument("--sizes", nargs="+", type=int, default=[*SIZES, 0], help="records; 0: the whole set")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--speed", action="store_true", help="time the n-grams against fastText instead")
    parser.add_argument("--files", action="store_true", help="pairs and pronunciations instead")
    parser.add_argument("--ratings", action="store_true", help="generated ratings, five seeds, instead")
    parser.add_argument("--peers", type=Path, default=ROOT / ".peers-linear", help="environment of the peers")
    arguments = parser.parse_args()
    if arguments.files:
        PLACE.mkdir(parents=True, exist_ok=True)
        files(arguments.data)
        return
    python = common.peer_python(arguments.peers.absolute(), "requirements-linear.txt")
    PLACE.mkdir(parents=True, exist_ok=True)
    if arguments.ratings:
        ratings(python, max(5, arguments.seeds))
        return
    if arguments.speed:
        for name, size, _, folder in cells(arguments.only, [0], 1, arguments.data):
            print(name, size or "all")
            speed(folder, python)
        return
    done = {row["cell"]: row for row in map(json.loads, RESULTS.read_text().splitlines())} if RESULTS.exists() else {}
    print("cell | ours | SVM | fastText | over the better")
    for _, _, seed, folder in cells(arguments.only, arguments.sizes, arguments.seeds, arguments.data):
        row = done.get(folder.name)
        if row is None:
            mine = ours(folder, seed)
            budget = max(10, round(mine["seconds"]))
            row = {"cell": folder.name, "ours": mine, "svm": peer(python, "svm", folder)}
            row["fasttext"] = fasttext(python, folder, budget)
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
        done[folder.name] = row
        scores = [row[who]["score"] for who in ("ours", "svm", "fasttext")]
        print(row["cell"], *(f"{s:.2f}" for s in scores), f"{gap(row):+.2f}", sep=" | ", flush=True)
    gaps = [gap(row) for row in done.values()]
    print(f"mean {sum(gaps) / len(gaps):+.2f}, worst {min(gaps):+.2f}, {len(gaps)} cells")
    record(list(done.values()), python)


def record(cells: Rows, python: Path) -> None:
    """Record the means over the seeds of each set and size, and the mean and the worst of these."""
    groups: dict[str, Rows] = {}
    for row in cells:
        name, size, _ = row["cell"].rsplit("-", 2)
        groups.setdefault(f"{name}, {'whole' if size == 'all' else f'{int(size):,} records'}", []).append(row)
    rows, gaps = [], []
    for group, members in groups.items():
        gaps.append(statistics.mean(map(gap, members)))
        figures: dict[str, Any] = {"over the better": f"{gaps[-1]:+.2f}"}
        for shown, who in (("`init`", "ours"), ("SVM", "svm"), ("fastText", "fasttext")):
            figures[shown] = round(statistics.mean(member[who]["score"] for member in members), 2)
        if len(members) > 1:
            figures["by seed"] = ", ".join(f"{gap(member):+.2f}" for member in members)
        rows.append({"row": group, "figures": figures})
    versions = common.peer_versions(python, "scikit-learn", "fasttext-wheel")
    common.record("defaults", "labels", rows, (), versions)
    overall = {"mean": statistics.mean(gaps), "worst": min(gaps)}
    means = [{"row": name, "figures": {"points": f"{value:+.2f}"}} for name, value in overall.items()]
    common.record("defaults", "labels_mean", means, (), versions)


if __name__ == "__main__":
    main()
