"""The conformance kit that authors of plugins use, on every component of our own."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoints import kit_bart, kit_bert, kit_gpt2, kit_t5

from seqpipe.config.plugins import BUILTIN, Plugins
from seqpipe.testing import check_embedding, check_encoder, check_head, check_reader, check_tokenizer

CHECKS = {"tokenizer": check_tokenizer, "embedding": check_embedding, "encoder": check_encoder, "head": check_head}
OFFERS = {(offer.kind, offer.name): offer for offer in Plugins().offers if offer.distribution == BUILTIN}

TOY_VECTORS = Path(__file__).parent / "embeddings" / "toy.vec"  # of the conformance kit's words
TOY_LEXICON = Path(__file__).parent / "tokenizers" / "toy-lexicon.txt"
CHECKPOINT = Path("a checkpoint of the conformance kit's words")  # stands for one that is made on the spot
CLASSIFIER, TAGGER, READER = (Path(f"a {name} of the same words") for name in ("classifier", "tagger", "reader"))
DECODER = Path("a decoder's checkpoint of the same words")
T5, T5_1 = Path("a T5 of the same words"), Path("a T5 1.1 of the same words")
BART, MARIAN = Path("a BART of the same words"), Path("a Marian of the same words")
STAGES: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("tokenizer", "bpe"): [
        {"max_size": 120},
        {"max_size": 120, "min_count": 3, "lowercase": True, "strip_accents": True, "normalize": "NFKC"},
        {"byte_level": True, "max_size": 300},
    ],
    ("tokenizer", "chars"): [{}, {"keep_spaces": False, "fold_digits": True, "normalize": "NFKC"}],
    ("tokenizer", "lexicon"): [{"path": TOY_LEXICON}, {"path": TOY_LEXICON, "lowercase": True, "min_count": 2}],
    ("tokenizer", "pretrained"): [{"checkpoint": CHECKPOINT}, {"checkpoint": CHECKPOINT, "normalize": "NFKC"}],
    ("tokenizer", "unigram"): [
        {"max_size": 150, "normalize": "NFC"},
        {"max_size": 150, "lowercase": True, "strip_accents": True},
    ],
    ("tokenizer", "wordpiece"): [
        {"max_size": 180, "normalize": "NFKD"},
        {"max_size": 180, "lowercase": True, "strip_accents": True},
    ],
    ("tokenizer", "words"): [
        {},
        {"normalize": "NFKC"},
        {"lowercase": True, "fold_digits": True, "min_count": 2, "normalize": "NFD"},
    ],
    ("embedding", "char-cnn"): [{"dim": 6, "char_dim": 4, "widths": [2, 3], "dropout": 0.1}],
    ("embedding", "char-lstm"): [{"dim": 6, "char_dim": 4, "dropout": 0.1}],
    ("embedding", "elmo"): [
        {"dim": 4, "char_dim": 3, "hidden": 3, "dropout": 0.1},
        {"dim": 4, "hidden": 4, "layers": 1, "widths": [2, 3], "layer_norm": True, "train": True},
    ],
    ("embedding", "image"): [{"height": 5, "width": 4}, {"height": 3, "width": 2, "colour": True, "normalise": False}],
    ("embedding", "linear"): [{"dim": 6, "dropout": 0.1}],
    ("embedding", "lookup"): [
        {"dim": 6, "dropout": 0.1, "locked_dropout": 0.1, "word_dropout": 0.1, "rare_dropout": 0.2},
        {"dim": 6, "column": "label"},
    ],
    ("embedding", "mel"): [{"bands": 6}, {"rate": 8000, "window": 160, "fft": 256, "bands": 5, "highest": 4000}],
    ("embedding", "ngrams"): [
        {"dim": 6, "dropout": 0.1},
        {"dim": 6, "chars": None, "words": 3, "weighting": "none", "max_size": 5},
        {"dim": 6, "words": 0, "chars": [3, 4], "binary": True},
    ],
    ("embedding", "positions"): [{"dim": 6, "dropout": 0.1}, {"dim": 5, "positions": "learned", "longest": 4}],
    ("embedding", "pretrained"): [{"checkpoint": CHECKPOINT, "dropout": 0.1, "window": 6}],
    ("embedding", "static"): [
        {"path": TOY_VECTORS, "dropout": 0.1},
        {"path": TOY_VECTORS, "train": False, "scale": 2.0, "word_dropout": 0.1},
    ],
    ("embedding", "vectors"): [
        {"path": TOY_VECTORS, "word_dropout": 0.1, "locked_dropout": 0.1},
        {"path": TOY_VECTORS, "train": True, "case": "fold", "dropout": 0.1},
        {"path": TOY_VECTORS, "missing": "zero", "limit": 3},
    ],
    ("encoder", "bag"): [
        {"dropout": 0.1},
        {"pool": "sum", "hidden": 5, "layers": 2},
        {"pool": "max", "hidden": 5, "activation": "tanh"},
        {"pool": "sqrtn", "dropout": 0.1},
    ],
    ("encoder", "bilm"): [{"hidden": 5, "dropout": 0.1}, {"hidden": 6, "layers": 1, "residual": False}],
    ("encoder", "cnn"): [
        {"filters": 4, "widths": [2, 3], "dropout": 0.1},
        {"filters": 4, "widths": [1, 5, 4], "activation": "tanh"},
    ],
    ("encoder", "compare"): [{"hidden": 3, "dropout": 0.1}],
    ("encoder", "conv"): [
        {"layers": 3, "dropout": 0.1},
        {"hidden": 5, "layers": 2, "width": 4, "gated": True, "dilated": False, "residual": False},
        {"layers": 2, "causal": True, "iterations": 2},
    ],
    ("encoder", "fine-tuned"): [
        {"checkpoint": CLASSIFIER, "task": "sequence-classification"},
        {"checkpoint": TAGGER, "task": "token-classification", "longest": 20},
        *({"checkpoint": CHECKPOINT, "pool": pool} for pool in ("mean", "cls")),
    ],
    ("encoder", "fine-tuned-reader"): [{"checkpoint": READER}, {"checkpoint": READER, "token_types": False}],
    ("encoder", "gru"): [
        {"hidden": 5, "layers": 2, "dropout": 0.1},
        {"hidden": 5, "direction": "backward", "reset": "before", "bias": False},
        {"hidden": 5, "reset": "before", "scan": True},
    ],
    ("encoder", "lenet"): [
        {"filters": [4, 5], "size": 3, "dropout": 0.1},
        {"filters": [4], "activation": "relu", "positions": True},
    ],
    ("encoder", "lstm"): [
        {"hidden": 5, "layers": 2, "dropout": 0.1},
        {"hidden": 5, "layers": 2, "direction": "forward", "bias": False},
        {"hidden": 5, "layers": 2, "peephole": True, "locked_dropout": 0.1},
        {"hidden": 5, "direction": "backward", "peephole": True, "coupled": True},
        {"hidden": 5, "peephole": True, "coupled": True, "scan": True},
        {"hidden": 5, "peephole": "full", "direction": "forward"},
    ],
    ("encoder", "nested-lstm"): [
        {"hidden": 5, "layers": 2, "dropout": 0.1, "locked_dropout": 0.1},
        {"hidden": 5, "depth": 3, "direction": "backward", "bias": False},
    ],
    ("encoder", "pretrained"): [
        {"checkpoint": CHECKPOINT, "dropout": 0.1, "window": 6},
        {"checkpoint": CHECKPOINT, "depth": 1, "layers": [0, 1], "recompute": True, "overlap": 3},
    ],
    ("encoder", "pretrained-decoder"): [{"checkpoint": DECODER, "dropout": 0.1}],
    ("encoder", "pretrained-seq2seq"): [
        {"checkpoint": T5_1, "dropout": 0.1},
        {"checkpoint": T5, "layer_decay": 0.9},
        {"checkpoint": BART, "dropout": 0.1, "layer_decay": 0.9},
        {"checkpoint": MARIAN},
    ],
    ("encoder", "pyramid"): [{"hidden": 4, "layers": 2, "dropout": 0.1}, {"hidden": 3, "layers": 3}],
    ("encoder", "resnet"): [{"filters": [4, 6], "dropout": 0.1}, {"filters": [4], "blocks": 2, "positions": True}],
    ("encoder", "rnn"): [
        {"hidden": 5, "layers": 2, "dropout": 0.1},
        {"hidden": 5, "layers": 2, "merge": "mean", "activation": "relu"},
    ],
    ("encoder", "self-attention"): [
        {"heads": 2, "positions": "sinusoidal", "residual": True, "dropout": 0.1},
        {"heads": 3, "combine": True, "causal": True, "positions": "learned", "longest": 4, "scale": False},
        *({"score": score, "units": 5} for score in ("additive", "key-only", "location")),
    ],
    ("encoder", "sentences"): [
        {"hidden": 4, "units": 3},
        {"hidden": 4, "cell": "lstm", "pool": "max", "direction": "backward", "dropout": 0.1},
        {"cell": "none", "pool": "mean"},
        {"hidden": 4, "cell": "rnn", "pool": "last", "split": "lines"},
    ],
    ("encoder", "subsample"): [{"hidden": 5, "filters": 3, "dropout": 0.1}, {"hidden": 4, "layers": 3}],
    ("encoder", "transformer"): [
        {"heads": 2, "feedforward": 8, "dropout": 0.1},
        {"hidden": 8, "layers": 1, "positions": "learned", "longest": 4, "norm": "post", "activation": "gelu"},
        {"heads": 2, "positions": "none", "feedforward": 8, "causal": True},
    ],
    ("encoder", "words"): [{}, {"pool": "mean"}, {"pool": "max", "joined": True}],
    ("head", "answer-span"): [{"no_answer": True, "dropout": 0.1}, {}],
    ("head", "bilm"): [{"dropout": 0.1}],
    ("head", "copy-seq2seq"): [
        {"hidden": 6, "embedding_dim": 4, "units": 5, "dropout": 0.1},
        {"cell": "gru", "hidden": 6, "coverage": False, "attention": "location", "layers": 2, "label_smoothing": 0.1},
    ],
    ("head", "crf"): [{"dropout": 0.1, "calibrate": True, "class_weights": "balanced"}],
    ("head", "electra"): [{"generator": 8, "heads": 2}, {"generator": 4, "heads": 1, "layers": 2, "share": 0.4}],
    ("head", "label"): [
        {"dropout": 0.1, "label_smoothing": 0.1, "class_weights": {"b": 2.0}},
        *({"pool": pool} for pool in ("mean", "first", "last")),
        {"pool": "attention", "score": "multi-head", "hidden": 5, "class_weights": "balanced"},
        {"multi": True, "threshold": "dev", "calibrate": True, "class_weights": "balanced"},
        {"multi": True, "threshold": "per_label"},
        {"out_of_scope": "c", "threshold": "dev", "exposure": 0.5, "calibrate": True},
    ],
    ("head", "lm"): [{"packed": False, "tie": False, "label_smoothing": 0.1}, {"tie": False}],
    ("head", "mlm"): [
        {},
        {"tie": True, "share": 0.4, "masked": 0.5, "random": 0.4, "activation": "relu"},
        {"whole_words": True},
    ],
    ("head", "pointer"): [
        {"hidden": 8, "heads": 2, "dropout": 0.1},
        {"hidden": 6, "heads": 3, "layers": 2, "cell": "gru", "score": "bilinear", "every": True, "dropout": 0.1},
        {"hidden": 6, "heads": 2, "glimpses": 2, "cell": "rnn", "score": "dot", "close": True},
        {"hidden": 6, "glimpses": 0, "score": "scaled-dot", "once": False},
    ],
    ("head", "pretrained-seq2seq"): [
        {"checkpoint": T5, "dropout": 0.1},
        {"checkpoint": T5_1, "label_smoothing": 0.1},
        {"checkpoint": BART, "dropout": 0.1},
        {"checkpoint": MARIAN, "label_smoothing": 0.1},
    ],
    ("head", "score"): [{"dropout": 0.1, "hidden": 5}, {"pool": "attention", "loss": "huber", "bounds": [-5.0, 13.0]}],
    ("head", "seq2seq"): [
        {"hidden": 6, "embedding_dim": 4, "layers": 2, "dropout": 0.1},
        {"cell": "lstm", "hidden": 6, "attention": "multi-head", "heads": 2, "input_feeding": False},
        {"cell": "rnn", "hidden": 6, "embedding_dim": 6, "attention": "none", "tie": True, "label_smoothing": 0.1},
        {"hidden": 6, "attention": "location", "scheduled_sampling": "linear", "sampling_steps": 3},
        {"hidden": 6, "embedding_dim": 4, "tie": True, "equal_length": True},
        {"hidden": 6, "embedding_dim": 4, "hard_attention": "straight-through", "intra_attention": True},
        {"hidden": 6, "attention": "bilinear", "hard_attention": "reinforce", "input_feeding": False, "cell": "lstm"},
        {"hidden": 6, "attention": "none", "context": "every-step", "intra_attention": True, "dropout": 0.1},
    ],
    ("head", "retrieval"): [{"dropout": 0.1, "width": 4}, {"pool": "attention", "temperature": 0.5}],
    ("head", "skip-gram"): [{"window": 2, "negatives": 2}, {"window": 1, "subsample": 0.01, "power": 0.0}],
    ("head", "tags"): [
        {"dropout": 0.1, "calibrate": True},
        {"scheme": "none", "calibrate": True, "class_weights": "balanced"},
    ],
    ("head", "transformer-decoder"): [
        {"heads": 2, "feedforward": 8, "dropout": 0.1},
        {"hidden": 8, "heads": 2, "layers": 1, "norm": "post", "positions": "learned", "longest": 4, "tie": False},
        {"heads": 2, "positions": "none", "activation": "gelu", "scale": False, "label_smoothing": 0.1},
        {"heads": 2, "layers": 1, "feedforward": 8, "equal_length": True},
        {"heads": 2, "layers": 1, "feedforward": 8, "spans": 0.3, "span_length": 2.0, "bleu_tokenize": "char"},
    ],
    ("head", "vector"): [{"dropout": 0.1, "width": 4}, {"pool": "attention", "normalize": False}],
}
CONLL = "# topic = a\nAda B-PER\nmet O\n\nOslo B-LOC\n\n"
CONLL_RECORDS = [
    {"text": "Ada met", "words": ["Ada", "met"], "tags": ["B-PER", "O"], "topic": "a"},
    {"text": "Oslo", "words": ["Oslo"], "tags": ["B-LOC"]},
]
JSONL = '{"text": "Ada met", "spans": [[0, 3, "PER"]], "topic": "a"}\n{"words": ["Oslo"], "tags": ["B-LOC"]}\n'
JSONL_RECORDS = [
    {"text": "Ada met", "spans": [{"start": 0, "end": 3, "label": "PER"}], "topic": "a"},
    {"text": "Oslo", "words": ["Oslo"], "tags": ["B-LOC"]},
]
JSON = '[{"text": "Ada met", "spans": [[0, 3, "PER"]], "topic": "a"},\n{"words": ["Oslo"], "tags": ["B-LOC"]}]\n'
FASTTEXT = "__label__a __label__b Ada met\n\nOslo\n"
FASTTEXT_RECORDS = [{"text": "Ada met", "labels": ["a", "b"]}, {"text": "Oslo", "labels": []}]
CSV = 'text,topic,what\n"Ada met, Bo",a,x|y\n\nOslo,b,z\n'
CSV_RECORDS = [
    {"text": "Ada met, Bo", "labels": ["x", "y"], "topic": "a"},
    {"text": "Oslo", "labels": ["z"], "topic": "b"},
]
CONLLU = "".join(
    f"{line}\t_\t_\n" if line else "\n"
    for line in ("1\tAda\tAda\tPROPN\tN\t_\t2\tnsubj", "2\tmet\tmeet\tVERB\tV\t_\t0\troot", "")
)
CONLLU_RECORD = {
    "text": "Ada met",
    "words": ["Ada", "met"],
    "tags": ["PROPN", "VERB"],
    "lemma": ["Ada", "meet"],
    "upos": ["PROPN", "VERB"],
    "xpos": ["N", "V"],
    "feats": ["_", "_"],
    "head": ["2", "0"],
    "deprel": ["nsubj", "root"],
}
SQUAD = """{"version": "2.0", "data": [
{"paragraphs": [{"qas": [{"id": "1", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]}],
"context": "Ada met Bo"}]},
{"paragraphs": [{"qas": [{"id": "2", "question": "Where?", "answers": [], "is_impossible": true}], "context": "Ada"}]}
]}
"""
SQUAD_RECORDS = [
    {"question": "Who?", "context": "Ada met Bo", "answers": {"text": ["Ada"], "answer_start": [0]}, "id": "1"},
    {"question": "Where?", "context": "Ada", "answers": {"text": [], "answer_start": []}, "id": "2"},
]
POINTS = "0.5 0.25 1 0 0 1 output 1 2 3 1\n\n1 2 output 1\n"
POINTS_RECORDS = [
    {"points": [[0.5, 0.25], [1, 0], [0, 1]], "pointers": [0, 1, 2, 0]},
    {"points": [[1, 2]], "pointers": [0]},
]
SEGMENTED_RECORDS = [
    {"text": text, "spans": [{"start": a, "end": b, "label": "word"} for a, b in places]}
    for text, places in (("Adamet", [(0, 3), (3, 6)]), ("在Oslo", [(0, 1), (1, 5)]))
]
LINES_RECORDS = [{"text": "Ada met"}, {"text": "Oslo"}]
READERS: dict[tuple[str, str], tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    ("reader", "conll"): (CONLL, CONLL_RECORDS, {}),
    ("reader", "conllu"): (CONLLU * 2, [CONLLU_RECORD] * 2, {}),
    ("reader", "csv"): (CSV, CSV_RECORDS, {"labels": "what"}),
    ("reader", "fasttext"): (FASTTEXT, FASTTEXT_RECORDS, {"multi": True}),
    ("reader", "json"): (JSON, JSONL_RECORDS, {"joiner": " "}),
    ("reader", "jsonl"): (JSONL, JSONL_RECORDS, {"joiner": " "}),
    ("reader", "lines"): ("Ada met\n\nOslo\n", LINES_RECORDS, {}),
    ("reader", "parallel"): ("Ada met\nOslo\n", LINES_RECORDS, {"fields": {"text": "*.txt"}}),
    ("reader", "points"): (POINTS, POINTS_RECORDS, {}),
    ("reader", "segmented"): ("Ada met\n\n在 Oslo\n", SEGMENTED_RECORDS, {}),
    ("reader", "squad"): (SQUAD, SQUAD_RECORDS, {}),
    ("reader", "text"): (
        "Ada met\n\nOslo\n",
        [{**record, "record_continues": False} for record in LINES_RECORDS],
        {"unit": "paragraph"},
    ),
    ("reader", "tsv"): ("label\tAda met\na\tOslo\n", LINES_RECORDS, {"columns": ["_", "text"]}),
}


def _rows() -> Iterator[Any]:
    """One export a component at every commit; components that are not exported, and the long tier, all rows."""
    for name, some in STAGES.items():
        for i, options in enumerate(some):
            marks = [pytest.mark.long] if i and name[0] != "tokenizer" else []
            yield pytest.param(name, options, marks=marks, id=f"{name[1]}-{i + 1}")


def made(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The options with a checkpoint on the disk where they name one."""
    make: dict[Any, Callable[[Path], Path]] = {
        CHECKPOINT: kit_bert,
        CLASSIFIER: partial(kit_bert, task="SequenceClassification"),
        TAGGER: partial(kit_bert, task="TokenClassification"),
        READER: partial(kit_bert, task="QuestionAnswering"),
        DECODER: kit_gpt2,
        T5: partial(kit_t5, version="1.0"),
        T5_1: partial(kit_t5, version="1.1"),
        BART: partial(kit_bart, family="bart"),
        MARIAN: partial(kit_bart, family="marian"),
    }
    named = options.get("checkpoint")
    return options if named is None else options | {"checkpoint": make[named](folder / "checkpoint")}


@pytest.mark.parametrize(("name", "options"), [*_rows()])
def test_every_stage_and_tokenizer_of_ours_keeps_the_contract(
    name: tuple[str, str], options: dict[str, Any], tmp_path: Path
) -> None:
    CHECKS[name[0]](OFFERS[name].load(), **made(options, tmp_path))


@pytest.mark.parametrize("name", READERS)
def test_every_reader_of_ours_keeps_the_contract(name: tuple[str, str]) -> None:
    content, expected, options = READERS[name]
    found = check_reader(OFFERS[name].load(), content, expected, **options)
    assert {finding.state for finding in found.findings} == {"ok"}


# These read no text file with a record in each line: tests/readers has what holds for them.
OF_THEIR_OWN = {
    ("reader", use)
    for use in ("annotations", "brat", "datasets", "dialogflow", "excel", "folders", "parquet", "sounds")
}


def test_no_component_of_ours_is_forgotten() -> None:
    assert {*STAGES, *READERS, *OF_THEIR_OWN} == OFFERS.keys()
