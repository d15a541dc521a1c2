"""Text classifiers without a neural network, for `defaults.py`: linear models of TF-IDF, and fastText with autotune.

    python linear_text.py svm FOLDER
    python linear_text.py logistic FOLDER
    python linear_text.py fasttext FOLDER SECONDS
    python linear_text.py fasttext-speed FOLDER EPOCHS DIM   # the n-grams of `init`; texts a second as well

FOLDER has train.jsonl, dev.jsonl and test.jsonl. Prints one line of JSON: the score on the test set (accuracy, or micro
F1 of several labels), seconds of training, and what dev chose. The test set is looked at once.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
CS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # of the SVM, tried on dev


def records(path: Path) -> tuple[list[str], list[list[str]]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row["text"] for row in rows], [row["labels"] if "labels" in row else [row["label"]] for row in rows]


def score(gold: list[list[str]], predicted: list[list[str]], multi: bool) -> float:
    """Accuracy, or micro F1 of several labels, in percent."""
    hits = sum(len({*g} & {*f}) for g, f in zip(gold, predicted, strict=True))
    if not multi:
        return 100 * hits / len(gold)
    return 200 * hits / max(1, sum(map(len, gold)) + sum(map(len, predicted)))


def svm(train: Any, dev: Any, test: Any, multi: bool) -> dict[str, Any]:
    """Word 1- and 2-grams and character n-grams, sublinear TF-IDF, one against the rest, C chosen on dev."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.preprocessing import MultiLabelBinarizer
    from sklearn.svm import LinearSVC

    clock = time.perf_counter()
    unspaced = sum(bool(CJK.search(text)) for text in train[0]) > len(train[0]) / 2
    characters = TfidfVectorizer(
        analyzer="char" if unspaced else "char_wb", ngram_range=(1, 4) if unspaced else (2, 5), sublinear_tf=True
    )
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    features = characters if unspaced else make_union(words, characters)
    x, xd = features.fit_transform(train[0]), features.transform(dev[0])
    binary = MultiLabelBinarizer().fit(train[1])
    y = binary.transform(train[1]) if multi else [labels[0] for labels in train[1]]

    def predict(model: Any, x: Any) -> list[list[str]]:
        decided = model.predict(x)
        return [[*labels] for labels in binary.inverse_transform(decided)] if multi else [[d] for d in decided]

    best, best_score, chosen = None, -1.0, 0.0
    for c in CS:
        model = make_pipeline(OneVsRestClassifier(LinearSVC(C=c)) if multi else LinearSVC(C=c)).fit(x, y)
        dev_score = score(dev[1], predict(model, xd), multi)
        if dev_score > best_score:
            best, best_score, chosen = model, dev_score, c
    seconds = time.perf_counter() - clock
    test_score = score(test[1], predict(best, features.transform(test[0])), multi)
    return {"score": test_score, "dev": best_score, "C": chosen, "seconds": seconds}


def logistic(train: Any, dev: Any, test: Any, multi: bool) -> dict[str, Any]:
    """TF-IDF of words and logistic regression, both with scikit-learn's own settings; dev is not used."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    clock = time.perf_counter()
    model = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000))
    model.fit(train[0], [labels[0] for labels in train[1]])
    seconds = time.perf_counter() - clock
    return {"score": score(test[1], [[label] for label in model.predict(test[0])], multi), "seconds": seconds}


def fasttext_autotune(train: Any, dev: Any, test: Any, multi: bool, budget: int) -> dict[str, Any]:
    """fastText with its own autotune on dev, for `budget` seconds."""
    import fasttext

    with tempfile.TemporaryDirectory() as place:
        names = _write_fasttext(Path(place), train, dev)
        clock = time.perf_counter()
        more = {"loss": "ova"} if multi else {}
        model = fasttext.train_supervised(
            f"{place}/train",
            autotuneValidationFile=f"{place}/dev",
            autotuneDuration=budget,
            verbose=0,
            thread=1,
            **more,
        )
        seconds = time.perf_counter() - clock
    test_score = score(test[1], [_predicted(model, text, names, multi) for text in test[0]], multi)
    settings = model.f.getArgs()
    kept = {k: getattr(settings, k) for k in ("epoch", "lr", "dim", "wordNgrams", "minn", "maxn", "bucket")}
    return {"score": test_score, "seconds": seconds, **kept}


def fasttext_speed(train: Any, dev: Any, test: Any, multi: bool, epochs: int, dim: int) -> dict[str, Any]:
    """fastText with n-grams and epochs as ours, one thread: score, seconds of training, texts a second."""
    import fasttext

    with tempfile.TemporaryDirectory() as place:
        names = _write_fasttext(Path(place), train, dev)
        clock = time.perf_counter()
        model = fasttext.train_supervised(
            f"{place}/train", epoch=epochs, dim=dim, lr=0.5, wordNgrams=2, minn=2, maxn=5, thread=1, verbose=0
        )
        seconds = time.perf_counter() - clock
    clock = time.perf_counter()
    answers = [_predicted(model, text, names, multi) for text in test[0]]
    rate = len(answers) / (time.perf_counter() - clock)
    return {"score": score(test[1], answers, multi), "seconds": seconds, "texts_per_second": rate}


def _write_fasttext(folder: Path, *parts: Any) -> list[str]:
    """Write files `train` and `dev` as fastText reads them; return the labels by their numbers there."""
    names = sorted({label for labels in parts[0][1] for label in labels})
    for name, (texts, part) in zip(("train", "dev"), parts, strict=True):
        lines = [
            " ".join(f"__label__{names.index(label)}" for label in labels if label in names) + f" {_spaced(text)}"
            for text, labels in zip(texts, part, strict=True)
        ]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return names


def _predicted(model: Any, text: str, names: list[str], multi: bool) -> list[str]:
    k, threshold = (-1, 0.5) if multi else (1, 0.0)
    predictions = model.f.predict(_spaced(text) + "\n", k, threshold, "strict")
    return [names[int(label.removeprefix("__label__"))] for _, label in predictions]


def _spaced(text: str) -> str:
    """A text as fastText reads it: lower case, tokens between blanks, each Chinese character a token."""
    return " ".join(re.findall(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+|[^\w\s]", text.lower()))


if __name__ == "__main__":
    what, folder = sys.argv[1], Path(sys.argv[2])
    train, dev, test = (records(folder / f"{part}.jsonl") for part in ("train", "dev", "test"))
    np.random.seed(1)
    multi = any(len(labels) != 1 for labels in train[1])
    numbers = map(int, sys.argv[3:])
    runs = {"svm": svm, "logistic": logistic, "fasttext": fasttext_autotune, "fasttext-speed": fasttext_speed}
    run = runs[what]
    print(json.dumps(run(train, dev, test, multi, *numbers)))
