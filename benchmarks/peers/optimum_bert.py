"""Time Optimum, bare onnxruntime and OpenVINO on one BERT classifier.

Reads names of measurements, a line each, and answers each with its seconds, a line of JSON; the first line it writes is
the list of names.
The classifier has the checkpoint's layers under a head of random weights; Optimum exports it with its own defaults.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # else a warning at every fork

import onnxruntime
import openvino
import torch
from optimum.onnxruntime import ORTModelForSequenceClassification
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

LABELS, BATCH = 77, 32
Ways = dict[str, Callable[[], object]]


def exported(checkpoint: Path, folder: Path) -> None:
    """Writes the classifier's ONNX file and tokenizer, unless they are there."""
    if (folder / "model.onnx").exists():
        return
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=LABELS)
    model.save_pretrained(folder / "torch")
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder / "torch")
    ORTModelForSequenceClassification.from_pretrained(folder / "torch", export=True).save_pretrained(folder)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)


def session_options(threads: int) -> onnxruntime.SessionOptions:
    """Of a session that uses so many threads for one run."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    return options


def batches(tokenizer: Any, texts: list[str]) -> list[list[str]]:
    """Texts of like lengths together, in tokens."""
    lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]]
    order = sorted(range(len(texts)), key=lambda i: -lengths[i])
    return [[texts[i] for i in order[at : at + BATCH]] for at in range(0, len(order), BATCH)]


def of_optimum(folder: Path, tokenizer: Any, texts: list[str], few: list[str]) -> Ways:
    """Its pipeline as it comes, and its model with texts sorted by length, on all threads or one run a core."""
    model = ORTModelForSequenceClassification.from_pretrained(folder)
    single = ORTModelForSequenceClassification.from_pretrained(folder, session_options=session_options(1))
    pipe = pipeline("text-classification", model=model, tokenizer=tokenizer)
    pool = ThreadPoolExecutor(cores())

    def answer(classifier: Any, some: list[str], form: str) -> list[int]:
        logits = classifier(**tokenizer(some, padding="longest", truncation=True, return_tensors=form)).logits
        return [int(label) for label in logits.argmax(-1)]

    return {
        "optimum, pipeline": lambda: pipe(texts),
        "optimum, pipeline in 32s": lambda: pipe(texts, batch_size=BATCH),
        "optimum, sorted in 32s": lambda: [answer(model, some, "pt") for some in batches(tokenizer, texts)],
        "optimum, sorted in 32s, numpy": lambda: [answer(model, some, "np") for some in batches(tokenizer, texts)],
        "optimum, sorted in 32s, a run a core": lambda: list(
            pool.map(lambda some: answer(single, some, "np"), batches(tokenizer, texts))
        ),
        "optimum, pipeline, singly": lambda: [pipe(text) for text in few],
    }


def of_onnxruntime(folder: Path, tokenizer: Any, texts: list[str], few: list[str]) -> Ways:
    """Its graph alone, fed with arrays that are ready, a run a core."""
    session = onnxruntime.InferenceSession(
        folder / "model.onnx", session_options(1), providers=["CPUExecutionProvider"]
    )
    feeds = [dict(tokenizer(some, padding="longest", return_tensors="np")) for some in batches(tokenizer, texts)]
    single = [dict(tokenizer([text], return_tensors="np")) for text in few]
    pool = ThreadPoolExecutor(cores())
    return {
        "optimum's graph alone": lambda: list(pool.map(lambda feed: session.run(None, feed), feeds)),
        "optimum's graph alone, singly": lambda: [session.run(None, feed) for feed in single],
    }


def of_openvino(folder: Path, tokenizer: Any, texts: list[str], few: list[str]) -> Ways:
    """The same file compiled by OpenVINO with its defaults, bfloat16 where the processor has it."""
    model = openvino.compile_model(folder / "model.onnx", "CPU")

    def answer(some: list[str]) -> list[int]:
        return list(model(dict(tokenizer(some, padding="longest", return_tensors="np")))[0].argmax(-1))

    return {
        "openvino, sorted in 32s": lambda: [answer(some) for some in batches(tokenizer, texts)],
        "openvino, singly": lambda: [answer([text]) for text in few],
    }


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    """Answers until its input ends."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--checkpoint", type=Path, required=True)
    flags.add_argument("--folder", type=Path, required=True, help="where the exported classifier is kept")
    flags.add_argument("--texts", type=Path, required=True, help="a JSON list")
    flags.add_argument("--one-by-one", type=int, required=True, help="how many of them are answered singly")
    arguments = flags.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr
    logging.disable(logging.WARNING)
    exported(arguments.checkpoint, arguments.folder)
    tokenizer, texts = AutoTokenizer.from_pretrained(arguments.folder), json.loads(arguments.texts.read_text())
    few = texts[: arguments.one_by_one]
    ways: Ways = {}
    for peer in (of_optimum, of_onnxruntime, of_openvino):
        ways |= peer(arguments.folder, tokenizer, texts, few)
    said: Any = list(ways)
    for line in itertools.chain([""], sys.stdin):
        if line:
            clock = time.perf_counter()
            ways[line.strip()]()
            said = time.perf_counter() - clock
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main()
