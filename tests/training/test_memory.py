"""Texts that are too long for training: cut, split, or refused before it; and allocations that fail."""

import functools
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doc_pages import ROOT
from gallery import Shape, parsed, write_pipeline
from repository_scripts import load_script
from tiny_pipelines import QUIET, plugins, untrained
from torch import Tensor

from seqpipe.api.run import Run
from seqpipe.config.loader import Config, load_config
from seqpipe.errors import ConfigError, DataError, EnvError
from seqpipe.runs.train import train_run
from seqpipe.training.datasets import Batches, Example, collate, examples, load_records, shorten
from seqpipe.training.evaluation import predictor
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.network import Network

HEADS: dict[str, Any] = {
    "seq2seq": {"use": "seq2seq", "target_tokenizer": "same"},
    "lm": {"use": "lm", "packed": False},
}


def pipeline(
    folder: Path, head: str, longest: int, *overrides: str, encoder: Any = "lstm", target: int | None = None
) -> Config:
    """A pipeline whose text 20 of 30 is the longest."""
    dice = random.Random(1)
    records: list[dict[str, Any]] = []
    for i in range(30):
        words = dice.choices("abcdef", k=longest if i == 20 else dice.randint(3, 6))
        record = {"text": " ".join(words), "label": words[0], "pointers": [*range(len(words))]}
        record["target"] = " ".join((words + words)[: target or len(words)])
        if head == "crf":
            record |= {"words": words, "tags": (["B-X", "I-X", "I-X"] * len(words))[: len(words)]}
        records.append(record)
    stages = {"tokenizer": "words", "encoder": encoder, "head": HEADS.get(head, head), "train": {"threads": 1}}
    yaml = write_pipeline(folder, lambda count, seed: records, "long", **stages)
    return load_config(yaml, ["data.dev=null", "data.test=null", "train.epochs=1", *overrides])


def prepared(config: Config) -> tuple[list[Example], list[str]]:
    records, warnings = load_records(config.data.reader, config.data.train), list[str]()
    return examples(config, fit_artifacts(config, records), records, warn=warnings.append), warnings


def test_a_split_text_has_all_of_its_words_and_whole_spans(tmp_path: Path) -> None:
    whole, _ = prepared(pipeline(tmp_path, "crf", 50))
    parts, warnings = prepared(pipeline(tmp_path, "crf", 50, "train.max_tokens=10", "train.too_long=split"))
    assert len(parts) == 29 + 6
    assert max(part.length for part in parts) == 9  # spans are three words long
    of_record = [part for part in parts if part.where.startswith("record 21 (")]
    assert [word for part in of_record for word in part.doc.words] == whole[20].doc.words
    assert [tag for part in of_record for tag in part.targets["tags"]] == whole[20].targets["tags"]
    for part in of_record:
        assert [part.doc.text[a:b] for a, b in part.doc.offsets] == part.doc.words
    assert warnings[0].startswith("1 texts of more than 10 tokens are split; the first: record 21 (")


def test_the_longest_text_is_tried_even_if_the_first_epoch_does_not_have_it(tmp_path: Path) -> None:
    config = pipeline(tmp_path, "seq2seq", 50, "train.batch_size=2", "train.epoch_steps=1")
    tried = list[int]()

    def record_length(self: Network, batch: Any, *others: Any) -> Tensor:
        tried.append(batch["ids"].shape[1])
        return loss(self, batch, *others)

    loss = Network.loss
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "loss", record_length)
        (tmp_path / "run").mkdir()
        train_run(Run(tmp_path / "run", config), QUIET, "cpu")
    assert tried[0] == 50 > max(tried[1:])


@pytest.mark.parametrize("head", ["label", "seq2seq", "crf", "lm"])
def test_a_truncated_text_has_its_first_tokens(tmp_path: Path, head: str) -> None:
    encoder, cut = {"use": "lstm", "direction": "forward"}, ("train.max_tokens=9", "train.too_long=truncate")
    data, _ = prepared(pipeline(tmp_path, head, 50, *cut, encoder=encoder))
    assert (data[20].length, len(data)) == (9, 30)
    assert len(data[20].doc) == 9 - (head == "lm")  # a language model reads [BOS] first


@pytest.mark.parametrize("target", [3, 7, 8, 9])
def test_a_truncated_source_has_its_first_tokens_whatever_the_length_of_its_target(tmp_path: Path, target: int) -> None:
    config = pipeline(tmp_path, "seq2seq", 8, "train.max_tokens=5", "train.too_long=truncate", target=target)
    example = prepared(config)[0][20]
    assert (len(example.doc), len(example.targets["target_ids"])) == (5, min(target + 1, 5))


def test_a_truncated_text_has_the_values_of_its_words_and_pairs_and_no_place_in_it(tmp_path: Path) -> None:
    yaml = write_pipeline(tmp_path, parsed, "parsed", tokenizer="words", head="shape")
    whole, cut = (
        load_config(yaml, ["data.dev=null", "data.test=null", *overrides], plugins(shape=("head", Shape)))
        for overrides in ([], ["train.max_tokens=3", "train.too_long=truncate"])
    )
    records = load_records(whole.data.reader, whole.data.train)
    number = next(i for i, record in enumerate(records) if len(record["words"]) > 3 and len(record["weight"]) > 1)
    artifacts, example = fit_artifacts(whole, records), prepared(whole)[0][number]
    with pytest.raises(DataError, match="its answer is a place in it"):
        shorten(cut, artifacts, example)
    targets = {name: value for name, value in example.targets.items() if name not in ("head", "name")}
    (part,) = shorten(cut, artifacts, replace(example, targets=targets))
    assert part.doc.words == example.doc.words[:3]
    expected = {name: value[:3] if name in ("tag", "size") else value for name, value in targets.items()}
    for name in ("next", "weight"):
        expected[name] = [row[:3] for row in targets[name][:3]]
    assert part.targets == expected


@pytest.mark.parametrize(
    ("head", "limit", "rule", "message"),
    [
        ("label", 9, "error", r"record 21 \(.*train.jsonl:21\): 50 tokens exceed train.max_tokens: 9; .* truncate$"),
        ("crf", 9, "error", "too_long: truncate or split"),
        ("label", 9, "split", "its answer is about all of it"),
        ("pointer", 9, "truncate", "its answer is a place in it"),
        ("crf", 2, "split", "so does a span or a word of it"),
    ],
)
def test_a_text_that_cannot_be_cut_is_an_error(tmp_path: Path, head: str, limit: int, rule: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepared(pipeline(tmp_path, head, 50, f"train.max_tokens={limit}", f"train.too_long={rule}"))


def test_parts_need_a_limit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"truncate needs a limit; set train\.max_tokens"):
        pipeline(tmp_path, "label", 50, "train.too_long=truncate")


def test_a_quadratic_cost_counts_beyond_512_tokens() -> None:
    linear, quadratic = (Batches(None, [], 4096, None, 1, quadratic=flag) for flag in (False, True))  # type: ignore[arg-type]
    assert [linear.cost(n) for n in (10, 512, 2048)] == [10, 512, 2048]
    assert [quadratic.cost(n) for n in (10, 512, 2048)] == [10, 512, 8192]


ADDITIVE = {"use": "self-attention", "score": "additive", "units": 4}

long_texts = load_script(ROOT / "benchmarks" / "long_texts.py")
ALLOCATION = "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"


@pytest.fixture
def of_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """The run of a family: 12 texts, of which the ninth has 400 words, and PyTorch has no memory for over 300."""

    def prepare(name: str, encoder: str, *overrides: str) -> Run:
        monkeypatch.setattr(long_texts, "TEXTS", 12)
        monkeypatch.setattr(long_texts, "LONG", 8)
        path = long_texts.prepare(name, encoder, 400, tmp_path)
        config = load_config(path, [f"data.dev={tmp_path}/train.jsonl", *overrides])
        stage = config.inputs[0].encoder[0].cls
        forward = stage.forward

        @functools.wraps(forward)
        def fail_when_long(module: Any, *values: Any, **more: Any) -> Any:
            tensors = [value for value in (*values, *more.values()) if isinstance(value, Tensor)]
            if max(tensor.shape[1] for tensor in tensors if tensor.dim() > 1) > 300:
                raise RuntimeError(ALLOCATION)
            return forward(module, *values, **more)

        monkeypatch.setattr(stage, "forward", fail_when_long)
        (tmp_path / "run").mkdir()
        return Run(tmp_path / "run", config)

    return prepare


FAMILIES = [(name, "transformer" if name == "mlm" else "lstm") for name in long_texts.FAMILIES]
LONG = r"record 9 \(.*train\.jsonl:9\)"


@pytest.mark.parametrize(("name", "encoder"), FAMILIES, ids=[name for name, _ in FAMILIES])
def test_each_family_names_the_text_that_fails_and_a_fix(
    of_family: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, name: str, encoder: str
) -> None:
    run = of_family(name, encoder)
    if "packed" in name:  # its windows have a fixed length, whatever that of a text
        train_run(run, QUIET, "cpu")
        return
    before = rf"{LONG}: 4\d\d tokens need more memory in encoder: encoder '{encoder}'.* train\.max_tokens: 2\d\d and"
    with pytest.raises(DataError, match=before):
        train_run(run, QUIET, "cpu")
    monkeypatch.setattr("seqpipe.runs.train.try_longest_text", lambda *arguments: None)
    monkeypatch.setattr("seqpipe.runs.train.calibrate", lambda *arguments: None)
    during = rf"out of memory in encoder: encoder '{encoder}'.* {LONG} is the longest, 4\d\d tokens; .*max_tokens: 2"
    with pytest.raises(EnvError, match=during):
        train_run(run, QUIET, "cpu")


@pytest.mark.parametrize("name", ["crf", "seq2seq"])
def test_a_text_of_dev_that_fails_is_named(of_family: Callable[..., Run], name: str) -> None:
    run = of_family(name, "lstm", "train.max_tokens=60", "train.too_long=truncate")
    with pytest.raises(EnvError, match=r"scores on dev, .*train\.jsonl:9: 400 tokens; shorten it.* data\.dev"):
        train_run(run, QUIET, "cpu")


def test_scores_on_dev_name_a_text_that_fails_and_leave_training_on(of_family: Callable[..., Run]) -> None:
    config = of_family("label", "lstm").config
    records, model = load_records(config.data.reader, config.data.train), untrained(config).train()
    with pytest.raises(DataError, match=r"train\.jsonl:9: out of memory in encoder: encoder 'lstm'.*shorten"):
        list(predictor(model).stream(records))
    assert model.training


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="it limits private memory by setrlimit")
@pytest.mark.parametrize("encoder", long_texts.ENCODERS)
@pytest.mark.parametrize("name", long_texts.FAMILIES)
def test_a_text_of_12000_words_is_learned_or_named(tmp_path: Path, name: str, encoder: str) -> None:
    outcome = long_texts.measure(name, encoder, 12_000, 3_000_000_000, tmp_path)
    if outcome is None:
        pytest.skip("the head cannot follow this encoder")
    assert outcome[0] in ("trained", "refused by check"), outcome


@pytest.mark.parametrize("most", [5, 50, 256])
def test_a_truncated_text_of_a_language_model_has_a_target_for_each_token(of_family: Any, most: int) -> None:
    config = of_family("lm, a text at a time", "lstm", f"train.max_tokens={most}", "train.too_long=truncate").config
    data, _ = prepared(config)
    assert next((len(row.doc), row.length) for row in data if row.length >= most) == (most - 1, most)
    model = untrained(config).train()
    assert torch.isfinite(model.loss(collate(model.artifacts, data)))


LIMITED = """
import resource, sys
import seqpipe.runs.train
from seqpipe.commands.app import main
kib = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, ((kib << 10) + 500_000_000,) * 2)
sys.argv += ["data.dev=null", "data.test=null"]
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it limits the address space by setrlimit")
def test_check_names_a_text_that_needs_too_much_memory(tmp_path: Path) -> None:
    pipeline(tmp_path, "label", 8_000, encoder=ADDITIVE)
    arguments = [sys.executable, "-c", LIMITED, "check", str(tmp_path / "long.yaml")]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 3, done.stderr
    for text in ("record 21 (", "train.jsonl:21)", "8,000 tokens", "encoder", "train.too_long"):
        assert text in done.stderr
    assert "plugin" not in done.stderr
