"""Analysis of answers and of a training: confusion, span errors, calibration, worst errors, facts about the data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from seqpipe.answers.comparison import Row, compare_answers, right_items
from seqpipe.answers.task import Task
from seqpipe.features.document import Doc, Record
from seqpipe.features.sources import InputSource
from seqpipe.features.vocabulary import SPECIALS, UNK
from seqpipe.runtime.predictor import CHUNK, chunks

HISTOGRAM_BINS = 10  # of a histogram
CALIBRATION_BINS = 15  # as in Guo et al. 2017, and in the messages of training
MOST_RECORDS = 5_000  # records of a set of which lengths, labels and unknown words are counted


def judge(task: Task, featurizer: InputSource, answers: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Iterate over a row for each head's answer to each record of a run's `answers`, as `Run.errors` documents it."""
    return chain.from_iterable(_judge(task, featurizer, chunk) for chunk in chunks(answers, CHUNK))


def _judge(task: Task, featurizer: InputSource, answers: Sequence[Mapping[str, Any]]) -> list[Row]:
    records = [row["record"] for row in answers]
    compared = compare_answers(task, records, [row["answer"] for row in answers])
    rows = zip(answers, featurizer.docs(records), compared, strict=True)
    return [{**row, "text": doc.text, "tokens": len(doc.ids), **part} for row, doc, parts in rows for part in parts]


def errors(judged: Iterable[Row]) -> list[Row]:
    """Return the wrong answers, the most confident first, with the wrong ones of their `items`."""
    wrong = [row for row in judged if not row["right"]]
    for i, right in enumerate(right_items(wrong)):
        items = [item for item, is_right in zip(wrong[i]["items"], right, strict=True) if not is_right]
        wrong[i] = {**wrong[i], "items": items}
    return sorted(wrong, key=lambda row: (-row["wrongness"], -len(row["items"])))


def confusion(judged: Iterable[Row]) -> list[Row]:
    """Count pairs of a label of the reference and one of the answer, the most frequent first (`Run.confusion`)."""
    names = ("set", "head", "field", "gold", "predicted", "kind")
    counts = Counter(tuple(map((row | item).get, names)) for row in judged for item in row["items"])
    rows = [{**dict(zip(names, key, strict=True)), "count": count} for key, count in counts.most_common()]
    empty = [name for name in ("head", "field", "kind") if not any(row[name] for row in rows)]
    return [{name: value for name, value in row.items() if name not in empty} for row in rows]


def scored(judged: Sequence[Row]) -> list[tuple[float, bool]]:
    """Return the probability of each answered item, or of each answer, and whether it is right."""
    pairs: list[tuple[float | None, bool]] = []
    for row, right in zip(judged, right_items(judged), strict=True):
        items = zip(row["items"], right, strict=True)
        answered = [(item["score"], is_right) for item, is_right in items if item["predicted"] is not None]
        pairs += answered if row["items"] else [(row["score"], row["right"])]
    return [(score, right) for score, right in pairs if score is not None]


def calibration(pairs: Sequence[tuple[float, bool]]) -> Row:
    """Return the expected calibration error (`ece`) of (probability, is right), and the bins of a reliability diagram.

    The error is the mean over all pairs of |share that is right - mean probability| of their bin (Guo et al. 2017);
    bins are of equal width, (lower, upper]. Without a pair it is None.
    """
    scores, right = np.array(pairs, np.float64).reshape(-1, 2).T
    places = np.clip(np.ceil(scores * CALIBRATION_BINS), 1, CALIBRATION_BINS)
    rows: list[Row] = []
    for inside in (places == place for place in np.unique(places)):
        means = {"confidence": float(scores[inside].mean()), "accuracy": float(right[inside].mean())}
        rows.append({"count": int(inside.sum()), **means})
    gaps = [row["count"] * abs(row["accuracy"] - row["confidence"]) for row in rows]
    return {"ece": sum(gaps) / len(pairs) if pairs else None, "count": len(pairs), "bins": rows}


# The data


def unknown_share(docs: Sequence[Doc]) -> float:
    """Return the share of tokens of all text sources that are not in the vocabulary."""
    unknown, texts = SPECIALS.index(UNK), [part for doc in docs for part in doc.parts or (doc,) if part.rows is None]
    return sum(doc.ids.count(unknown) for doc in texts) / max(1, sum(map(len, texts)))


def data_facts(featurizer: InputSource, task: Task, records: Sequence[Record]) -> Row:
    """Return facts about a set of records; of a large one about `MOST_RECORDS` of them, evenly spread.

    Keys: `records`, their number; `counted`, of how many the rest is; `lengths`, the mean, median and maximum number of
    tokens; `unknown`, the share of tokens that are not in the vocabulary; `labels`, the count of each by head. Of the
    text of a language model only the first.
    """
    if task.kind.is_generated:  # one long text, which may be larger than memory
        return {"records": len(records)}
    size = min(len(records), MOST_RECORDS)
    sample = [records[i * len(records) // size] for i in range(size)]
    docs, labels = featurizer.docs(sample), {}
    for head, part in task.parts.items():
        if part.answer_labels() and part.is_comparable:
            counts = Counter(label for record in sample for label in part.labels_in(part.gold(record)))
            labels[head] = dict(counts.most_common())
    lengths = np.array([len(doc) for doc in docs])
    spread = {"mean": float(lengths.mean()), "median": float(np.median(lengths)), "most": int(lengths.max())}
    facts = {"records": len(records), "counted": size, "lengths": spread, "labels": labels}
    return facts | {"unknown": unknown_share(docs)}


# The training in words

NORM_GROWTH, NORM_SHARE = 100.0, 1e-5  # of a gradient that explodes between epochs, or vanishes beside other stages
LOSS_RISE, SCORE_GAP = 1.1, 0.1  # of the dev loss over its minimum, and between the scores of train and dev
FINDINGS = {
    "explodes": ("Training explodes", "lower train.optimizer.lr, or set train.clip"),
    "vanishes": ("Gradients vanish", "use an LSTM, a GRU or residual connections, not a plain RNN, or fewer layers"),
    "overfits": (
        "The model overfits: it learns the training data by heart",
        "add data or dropout, or make the model smaller; the weights of the chosen epoch are kept",
    ),
}


def training_findings(history: Sequence[Mapping[str, Any]], metric: str | None) -> list[Row]:
    """Return the findings about a training: rows of `kind`, a key of FINDINGS, and `text` with the fix.

    `metric` is the dev score that selected the weights.
    """
    findings, explosions = list[tuple[str, str]](), list[str]()
    norms = [{stage: math.inf if norm is None else norm for stage, norm in row["gradients"].items()} for row in history]
    for stage in norms[0] if norms else ():
        values = [row.get(stage, 0.0) for row in norms]
        if max(values) > NORM_GROWTH * max(values[0], 1e-3):
            epoch = history[values.index(max(values))]["epoch"]
            grown = f"from {values[0]:.3g} to {max(values):.3g} in epoch {epoch}"
            explosions = [f"the gradient norm of {stage} grew {grown}"]
        shares = [row[stage] / max(row.values()) for row in norms if row.get(stage) and max(row.values()) < math.inf]
        if shares and (share := float(np.median(shares))) < NORM_SHARE:
            findings.append(("vanishes", f"the norm of {stage} is {share:.1g} of the largest one, so it hardly learns"))
    explosions += [f"{row['diverged']} in epoch {row['epoch']}" for row in history if "diverged" in row]
    if explosions:
        findings.append(("explodes", "; ".join(explosions)))
    epochs = [row for row in history if row.get("dev")]
    losses = [(row["dev"]["loss"], row["loss"], row["epoch"]) for row in epochs if row["dev"].get("loss") is not None]
    if losses and losses[-1][0] > LOSS_RISE * min(losses)[0] and losses[-1][1] < min(losses)[1]:
        (low, before, epoch), (high, after, _) = min(losses), losses[-1]
        text = f"after epoch {epoch} the dev loss rises from {low:.3g} to {high:.3g}"
        findings.append(("overfits", f"{text} while the training loss falls from {before:.3g} to {after:.3g}"))
    best: Mapping[str, Any] = next((row for row in reversed(epochs) if row["best"]), {})
    train, dev = (best.get(part, {}).get(metric) for part in ("train", "dev"))
    if train is not None and dev is not None and 1 >= train > dev + SCORE_GAP:
        scores = f"{metric} is {100 * train:.0f} % on train and {100 * dev:.0f} % on dev"
        findings.append(("overfits", f"in epoch {best['epoch']} {scores}"))
    return [
        {"kind": kind, "text": f"{FINDINGS[kind][0]}: {details}. Fix: {FINDINGS[kind][1]}."}
        for kind, details in findings
    ]
