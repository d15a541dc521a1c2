"""Texts of 100 tokens as answers to one source: their order by score and by log_score, beside teacher-forced PyTorch.

    python benchmarks/log_scores.py runs/dates runs/gpt runs/summarise

RUN is any run with a single head that generates text. The texts are random tokens of its target vocabulary, so that
all are improbable; PyTorch reads each as a whole and sums the log-probabilities of its tokens and its end. A gap is
within the bound of the comparison at export if float64 need not judge it. Figures are recorded in runs/results.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch

import seqpipe
from seqpipe.api.model import Model
from seqpipe.console import Console
from seqpipe.export.parity.decisions import MAX_GAP, MAX_RELATIVE_GAP
from seqpipe.features.vocabulary import EOS, SPECIALS
from seqpipe.runs.run_folder import load_trained, open_run
from seqpipe.training.network import Network

TOKENS, TEXTS = 100, 50


def alternatives(model: Model) -> list[str]:
    """Random texts that the model may write, each of about as many tokens."""
    kind: Any = model.predictor.kind
    draw, size, texts = random.Random(1), kind.tokenizer.get_vocab_size(), list[str]()
    while len(texts) < TEXTS:
        count = draw.randint(TOKENS // 2, TOKENS)  # random pieces are split into more when they are read again
        text = kind.tokenizer.decode([draw.randrange(len(SPECIALS), size) for _ in range(count)])
        (ids,) = kind.encode([text], model.predictor.docs([model.manifest.golden[0].record]), [{}])
        if min(ids, default=0) >= len(SPECIALS) and 0.95 * TOKENS <= len(ids) <= 1.05 * TOKENS:
            texts.append(text)
    return texts


def teacher_forced(network: Network, model: Model, texts: Sequence[str]) -> np.ndarray:
    """The log-probability of each text and its end in PyTorch, (N,)."""
    kind: Any = model.predictor.kind
    docs = model.predictor.docs([model.manifest.golden[0].record])
    features = {name: torch.from_numpy(array) for name, array in model.predictor.featurizer.collate(docs).items()}
    totals = []
    for text in texts:
        (ids,) = kind.encode([text], docs, [{}])
        with torch.no_grad():
            totals.append(float(network.score(features, {"tokens": torch.tensor([[[*ids, SPECIALS.index(EOS)]]])})[0]))
    return np.array(totals)


def row(run: Path) -> dict[str, Any]:
    model = seqpipe.load(run / "bundle", "cpu", threads=1)
    network = load_trained(open_run(run, Console(-1), need_data=False)).network.eval()
    texts, record = alternatives(model), model.manifest.golden[0].record
    model.score(record, texts[:1])
    answers: list[Any] = []
    took = common.seconds(lambda: answers.extend(model.score(record, texts)))
    expected, got = teacher_forced(network, model, texts), np.array([answer["log_score"] for answer in answers])
    gaps, allowed = np.abs(got - expected), MAX_GAP + MAX_RELATIVE_GAP * np.abs(expected)
    figures = {
        "distinct scores": len({answer["score"] for answer in answers}),
        "distinct log_scores": len({*got.tolist()}),
        "log_scores from": round(float(got.min()), 1),
        "to": round(float(got.max()), 1),
        "in the order of PyTorch": "yes" if (np.argsort(got) == np.argsort(expected)).all() else "no",
        "largest gap": f"{gaps.max():.1e}",
        "within the bound": f"{int((gaps <= allowed).sum())} of {len(texts)}",
        "milliseconds a text": round(1e3 * took / len(texts), 1),
    }
    print(run.name, figures, flush=True)
    return {"row": run.name, "figures": figures}


if __name__ == "__main__":
    parser = common.parser(__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    common.record("log_scores", "alternatives", [row(run) for run in parser.parse_args().runs])
