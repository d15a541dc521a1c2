"""Converted checkpoints side by side: their answers beside transformers', their speed beside Optimum's.

    python benchmarks/convert.py same --data FOLDER                # nine families, seven tasks, 1,000 texts each
    python benchmarks/convert.py same --data FOLDER --families bert roberta --kinds label simple
    python benchmarks/convert.py time --checkpoint FOLDER          # to a verified bundle of all-MiniLM-L6-v2
    python benchmarks/convert.py speed --checkpoint FOLDER --data FOLDER [--peers ENVIRONMENT]

The checkpoints of `same` are made on the spot, of random weights. `speed` gives MiniLM the head of 77 labels that the
peers of `bert.py` have; run it on an otherwise idle machine. Figures are recorded in runs/results.
"""

from __future__ import annotations

import csv
import gzip
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bert
import common
import random_checkpoints
from common import RUNS

TEXTS, CLOSE = 1_000, 1e-4
TAGS = dict(enumerate(("O", "B-PER", "I-PER", "B-LOC", "I-LOC")))
CLASSES, TOKENS = "SequenceClassification", "TokenClassification"
KINDS: dict[str, tuple[str, dict[str, Any], list[str]]] = {  # head, its configuration, options of the command
    "label": (CLASSES, {"num_labels": 5}, []),
    "labels": (CLASSES, {"num_labels": 5, "problem_type": "multi_label_classification"}, []),
    "score": (CLASSES, {"num_labels": 1, "problem_type": "regression"}, []),
    "simple": (TOKENS, {"id2label": TAGS}, ["--aggregation", "simple"]),
    "first": (TOKENS, {"id2label": TAGS}, ["--aggregation", "first"]),
    "question": ("QuestionAnswering", {}, []),
    "vector": ("", {}, ["--pooling", "mean"]),
}
ODD = (
    "",
    " ",
    "\n",
    " \n\t ",
    "👍",
    "👍🏽 ok ☺️ 🇨🇭",
    "e\u0301 Z\u0351\u036b",
    "ﬁne ½ İstanbul",
    "\u200b",
    "a\u00a0b",
    " end \n",
)


def texts_of(data: Path | None, count: int) -> list[str]:
    """Short, long, foreign and odd texts: questions, sentences, whole reviews, Chinese and Japanese."""

    def lines(name: str) -> list[str]:
        content = common.data_path(data, name).read_bytes()
        return (gzip.decompress(content) if name.endswith(".gz") else content).decode("utf-8").splitlines()

    sets = [
        [row[0] for row in csv.reader(lines("banking77/test.csv")[1:])],
        [line.partition("\t")[2] for line in lines("sentence_polarity/dev.tsv")],
        [line.rpartition("\t")[2] for line in lines("sib200_zho/test.tsv")[1:]],
        lines("tanaka10k_ja_en/dev.ja"),
        [json.loads(line)["text"] for line in lines("movie_reviews/dev.jsonl.gz")],
    ]
    shares = [0.3, 0.3, 0.15, 0.15, 0.1]
    chosen = [*ODD]
    for each, share in zip(sets, shares, strict=True):
        wanted = int(share * count)
        chosen += each[:: max(1, len(each) // wanted)][:wanted]
    return chosen[:count]


def same(families: list[str], kinds: list[str], texts: list[str]) -> None:
    """Convert a checkpoint of each family and kind, and compare all answers of the bundle with transformers'."""
    import seqpipe

    for family in families:
        for kind in kinds:
            task, more, options = KINDS[kind]
            with tempfile.TemporaryDirectory() as place:
                folder, bundle = Path(place) / family, Path(place) / "bundle"
                random_checkpoints.encoder(folder, family, task, texts[:300], vocabulary=2_000, longest=514, **more)
                common.seqpipe("convert", folder, "-o", bundle, "-q", *options)
                records = question_records(texts) if kind == "question" else [{"text": text} for text in texts]
                n = len(more.get("id2label", ())) or more.get("num_labels", 1)
                decoding = {"n_best": n} if kind == "label" else {}
                answers = [*seqpipe.load(bundle, "cpu")(records, **decoding)]
                pairs = zip(answers, references(kind, folder, records), strict=True)
                far = [difference(kind, *pair) for pair in pairs]
            unequal, worst = sum(value is None for value in far), max((v for v in far if v is not None), default=0.0)
            print(
                f"{family:12}{kind:10}{len(far) - unequal:5} of {len(far)} equal, scores within {worst:.2g}", flush=True
            )
            figures = {"equal answers": f"{len(far) - unequal:,} of {len(far):,}", "scores within": f"{worst:.1g}"}
            common.record("convert", "same", [{"row": f"{family}, {kind}", "figures": figures}], ["transformers"])


def question_records(texts: list[str]) -> list[dict[str, str]]:
    """Questions on passages that fit in one window: transformers' own search over windows is another one."""
    shown = [text for text in texts if 1 < len(text) < 400]
    return [{"question": "Who met whom?", "context": text} for text in shown]


def references(kind: str, folder: Path, records: list[dict[str, str]]) -> Iterator[Any]:
    """What transformers answers, record by record."""
    import torch
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    texts = [record.get("text", "") for record in records]
    if kind in ("simple", "first"):
        tagger = transformers.pipeline("token-classification", str(folder), aggregation_strategy=kind, device="cpu")
        yield from (tagger(text) for text in texts)
    elif kind in ("label", "labels", "score"):
        classifier = transformers.pipeline("text-classification", str(folder), device="cpu")
        yield from (classifier(text, truncation=True, top_k=None) for text in texts)
    else:
        auto = transformers.AutoModelForQuestionAnswering if kind == "question" else transformers.AutoModel
        tokenizer, model = transformers.AutoTokenizer.from_pretrained(folder), auto.from_pretrained(folder).eval()
        for record in records:
            pair = [record[name] for name in ("question", "context", "text") if name in record]
            encoding = tokenizer(*pair, truncation=True, return_tensors="pt", return_offsets_mapping=True)
            offsets = encoding.pop("offset_mapping")[0].tolist()
            with torch.no_grad():
                outputs = model(**encoding)
            if kind == "vector":
                yield outputs.last_hidden_state[0].mean(0).tolist()
                continue
            inside = [i for i, part in enumerate(encoding.sequence_ids(0)) if part == 1]
            starts, ends = (outputs[side][0, inside].log_softmax(0) for side in (0, 1))
            spans = starts[:, None] + ends + torch.full((len(inside),) * 2, -1e9).tril(-1)
            spans += torch.full_like(spans, -1e9).triu(30)  # the default of `longest`
            first, last = divmod(int(spans.argmax()), len(inside)) if inside else (0, 0)
            context = record["context"]
            answer = context[offsets[inside[first]][0] : offsets[inside[last]][1]].rstrip() if inside else ""
            yield {"answer": answer, "score": float(spans.max().exp()) if inside else 1.0}


def difference(kind: str, ours: Any, theirs: Any) -> float | None:
    """How far the scores of two answers are apart; None for other answers, or for scores that are far apart."""
    if kind in ("simple", "first"):
        places = [[(span["entity_group"], span["start"], span["end"]) for span in side] for side in (ours, theirs)]
        return 0.0 if places[0] == places[1] else None
    if kind == "vector":
        far = max(abs(a - b) for a, b in zip(ours["vector"], theirs, strict=True))
    elif kind == "score":
        far = abs(ours["score"] - theirs[0]["score"])
    elif kind == "question":
        far = abs(ours["score"] - theirs["score"])
        if ours["answer"] != theirs["answer"] and far > CLOSE:
            return None
    else:
        scores = {entry["label"]: entry["score"] for entry in theirs if kind == "label" or entry["score"] >= 0.5}
        if {entry["label"] for entry in ours} != {*scores}:
            return None
        far = max([0.0, *(abs(entry["score"] - scores[entry["label"]]) for entry in ours)])
    return far if far <= CLOSE else None


def convert_time(checkpoint: Path, rounds: int) -> None:
    """Seconds of `seqpipe convert` without its cache, and of `seqpipe verify`, as a user waits for them."""
    bundle, taken = RUNS / "bench-convert" / "minilm", []
    for _ in range(rounds):
        clock = time.perf_counter()
        common.seqpipe("convert", checkpoint, "-o", bundle, "-q")
        common.seqpipe("verify", bundle, "-q")
        taken.append(time.perf_counter() - clock)
    figures = {"seconds": round(statistics.median(taken), 1)}
    print(f"a verified bundle in {figures['seconds']} s ({min(taken):.1f} to {max(taken):.1f})")
    common.record("convert", "time", [{"row": "all-MiniLM-L6-v2", "figures": figures, "asked": "60 or less"}])


def speed(checkpoint: Path, environment: Path, rounds: int, texts: list[str]) -> None:
    """Texts a second of the converted classifier and of each way of the peers, in turn; medians."""
    import seqpipe

    with bert.peer_process(environment, checkpoint, texts) as peers:  # makes the classifier that both have
        ways = peers.greeting
        bundle = RUNS / "bench-convert" / "classifier"
        common.seqpipe("convert", RUNS / "bench-bert-peer" / "torch", "-o", bundle, "-q")
        model = seqpipe.load(bundle, "cpu")
        ours: dict[str, Callable[[], object]] = {
            "seqpipe": lambda: model(texts),
            "seqpipe, singly": lambda: [model(text) for text in texts[: bert.SINGLY]],
        }
        seconds: dict[str, list[float]] = {side: [] for side in (*ours, *ways)}
        for turn in range(rounds + 1):  # the first to warm up
            for side, each in seconds.items():
                taken = common.seconds(ours[side]) if side in ours else float(peers.ask(side))
                if turn:
                    each.append(taken)
    sizes = {side: len(texts[: bert.SINGLY]) if side.endswith("singly") else len(texts) for side in seconds}
    rates = {side: [sizes[side] / taken for taken in each] for side, each in seconds.items()}
    medians = {side: statistics.median(each) for side, each in rates.items()}
    versions = common.peer_versions(environment / "bin" / "python", "optimum", "onnxruntime", "openvino")
    # From texts to labels; the graph alone is without the tokenizer.
    whole = [side for side in ways if side.startswith("optimum") and "singly" not in side and "graph" not in side]
    best = max(whole, key=medians.__getitem__)
    rows = []
    for side, rate in medians.items():
        row: dict[str, Any] = {"row": side, "figures": {"texts/s": round(rate)}}
        if side == "seqpipe":
            ratio = statistics.median(a / b for a, b in zip(rates[side], rates[best], strict=True))
            row |= {"peer": best, "ratio": round(ratio, 2), "asked": "0.9"}
        print(f"{side:44}{rate:9,.0f} texts/s" + (f"  {row['ratio']} of {best}" if "ratio" in row else ""))
        rows.append(row)
    common.record("convert", "speed", rows, (), f"of the peers: {versions}")


if __name__ == "__main__":
    parser = common.parser(__doc__)
    parser.add_argument("what", choices=("same", "time", "speed"))
    parser.add_argument("--families", nargs="+", choices=[*random_checkpoints.ENCODERS, *random_checkpoints.LIKE])
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--texts", type=int, default=TEXTS, help="how many")
    parser.add_argument("--checkpoint", type=Path, help="of all-MiniLM-L6-v2")
    parser.add_argument("--peers", type=Path, default=bert.PEERS, help="the peers' environment")
    parser.add_argument("--rounds", type=int, default=5)
    common.add_data_option(parser)
    arguments = parser.parse_args()
    if arguments.what == "same":
        families = arguments.families or [*random_checkpoints.ENCODERS]
        same(families, arguments.kinds, texts_of(arguments.data, arguments.texts))
    elif arguments.checkpoint is None:
        parser.error(f"{arguments.what} needs --checkpoint FOLDER")
    elif arguments.what == "time":
        convert_time(arguments.checkpoint.absolute(), arguments.rounds)
    else:
        speed(arguments.checkpoint.absolute(), arguments.peers, arguments.rounds, bert.test_texts(arguments.data))
