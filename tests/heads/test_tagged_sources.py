"""Heads of tags and spans read several sources: the first is tagged, the others stand beside each of its words."""

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from gallery import train_settings
from second_runtime import Bundle, matches_golden
from tiny_pipelines import QUIET, fail_with, seqpipe, succeed, write_jsonl, write_yaml

from seqpipe import load as open_bundle
from seqpipe.api.model import Model
from seqpipe.config.loader import Config, load_config
from seqpipe.errors import ConfigError, DataError
from seqpipe.nn.multi_source_attention import join_source_outputs
from seqpipe.runs.full_run import RunOptions, run_all
from seqpipe.training.fit import fit_artifacts

WORDS, TAGS = ("bank", "gift", "rat", "chef", "mode", "kind"), {"de": "NOUN", "en": "VERB"}
TEXT = {"tokenizer": "words", "embedding": {"use": "lookup", "dim": 8}}
LANGUAGE = {"field": "language", "tokenizer": "words", "embedding": {"use": "lookup", "dim": 4}}
USER = {"field": "user", "embedding": {"use": "linear", "dim": 4}}


def sentences(count: int, seed: int) -> list[tuple[str, list[str]]]:
    dice = random.Random(seed)
    return [(dice.choice(("de", "en")), dice.choices(WORDS, k=dice.randint(1, 6))) for _ in range(count)]


def pipeline(folder: Path, **changes: Any) -> Config:
    """Words whose tag is that of their language, and those of some users that are names."""
    for part, count, seed in (("train", 200, 1), ("dev", 30, 2), ("test", 80, 3)):
        blocks, rows = [], []
        for language, words in sentences(count, seed):
            blocks.append(f"# language = {language}\n" + "".join(f"{word}\t{TAGS[language]}\n" for word in words))
            tags = ["B-X" if language == "de" and word < "h" else "O" for word in words]
            rows.append({"tokens": words, "tags": tags, "user": [1.0, 0.2] if language == "de" else [0.0, 0.9]})
        (folder / f"{part}.conll").write_text("\n".join(blocks))
        write_jsonl(folder / f"{part}.jsonl", rows)
    suffix = "jsonl" if "user" in (changes.get("inputs") or {}) else "conll"
    reader = {"use": "jsonl", "words": "tokens"} if suffix == "jsonl" else {"use": "conll", "scheme": "none"}
    content = {
        "data": {"reader": reader, **{part: f"{part}.{suffix}" for part in ("train", "dev", "test")}},
        "inputs": {"text": {**TEXT, "encoder": {"use": "lstm", "hidden": 6}}, "language": LANGUAGE},
        "head": {"use": "crf", "scheme": "none"},
        "train": train_settings(4, tokens=128),
        **changes,
    }
    return load_config(
        write_yaml(folder, "tagger", **{key: value for key, value in content.items() if value is not None})
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a run whose export compared onnxruntime with PyTorch."""
    folder = tmp_path_factory.mktemp("sources")
    with contextlib.chdir(folder):
        assert (run_all(pipeline(folder), QUIET, RunOptions("cpu")).scores or {})["test"]["accuracy"] == 1.0
    return folder / "runs" / "tagger" / "bundle"


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return open_bundle(folder)


def tags(answer: Any) -> list[str]:
    return [word["entity"] for word in answer]


def test_a_joined_vector_is_the_positions_own_and_those_of_the_other_sources() -> None:
    x, mask = torch.arange(12.0).view(2, 3, 2), torch.tensor([[True, True, True], [True, False, False]])
    means = {"x": torch.tensor([[[1.0], [3.0]], [[5.0], [9.0]]]), "mask": torch.tensor([[True, True], [True, False]])}
    one = torch.ones(2, 1, dtype=torch.bool)
    state = {"x": torch.zeros(2, 1, 2), "mask": one, "state": torch.tensor([[7.0, 8], [6, 4]])}
    first = {"x": x, "mask": mask, "other_x": -x, "window": mask.long()}
    joined = join_source_outputs([first, means, state])
    for name in ("x", "other_x"):
        assert joined[name][0].tolist() == [[*row, 2.0, 7.0, 8.0] for row in first[name][0].tolist()]
        assert joined[name][1].tolist() == [[*row, 5.0, 6.0, 4.0] for row in first[name][1].tolist()]
    assert joined["mask"] is mask
    assert joined["window"] is first["window"]


def test_a_tag_depends_on_the_second_input(model: Model) -> None:
    for language, tag in TAGS.items():
        answer = model({"text": "gift  rat", "language": language})
        assert tags(answer) == [tag, tag]
        assert [(word["word"], word["start"], word["end"]) for word in answer] == [("gift", 0, 4), ("rat", 6, 9)]
    best, second = model({"words": ["gift"], "language": "en"}, n_best=2)
    assert (tags(best["tags"]), tags(second["tags"])) == (["VERB"], ["NOUN"])
    assert model({"text": "", "language": "en"}) == []


def test_predict_reads_tabs_json_and_conll(folder: Path) -> None:
    lines = seqpipe("predict", folder, stdin=b"gift rat\tde\nkind\ten\n").out.splitlines()
    assert [tags(json.loads(line)) for line in lines] == [["NOUN", "NOUN"], ["VERB"]]
    line = json.dumps({"words": ["gift"], "language": "de"}).encode()
    assert tags(json.loads(seqpipe("predict", folder, "--format", "jsonl", stdin=line).out)["answer"]) == ["NOUN"]
    conll = seqpipe("predict", folder, "--format", "conll", stdin=b"# language = en\ngift\n")
    assert conll.out.split() == ["gift", "VERB"]
    fail_with(3, "write text<TAB>language", "predict", folder, stdin=b"gift\n")


def test_it_is_verified_and_a_second_runtime_answers_the_same(folder: Path, model: Model) -> None:
    assert seqpipe("verify", folder, "--device", "cpu").code == 0
    records = [{"text": " ".join(words), "language": language} for language, words in sentences(40, 9)]
    expected = Bundle(folder).batch(records)
    assert len({str(answer) for answer in expected}) > 20
    assert matches_golden(expected, [model(record) for record in records])


def test_spans_beside_numbers_and_several_heads_export(tmp_path: Path) -> None:
    heads = [{"use": "tags", "name": "a", "scheme": "IOB2"}, {"use": "crf", "name": "b"}]
    pieces = {**TEXT, "tokenizer": {"use": "bpe", "max_size": 60}, "encoder": {"use": "words"}}
    config = pipeline(tmp_path, inputs={"text": pieces, "user": USER}, head=heads)
    done = succeed("check", config.file, "--json", folder=tmp_path)
    assert json.loads(done.out)["decisions"] > 0


NO_EMBEDDING, PIECES = {**LANGUAGE, "embedding": None}, {**TEXT, "tokenizer": "bpe"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": {"user": USER, "text": TEXT}}, "for the words of the first input, and 'user' is not a text"),
        ({"inputs": {"text": TEXT, "language": NO_EMBEDDING}}, "and 'language' has none; add an emb"),
        ({"head": ["crf", "label"]}, "head 'label' of seqpipe-nlp: it supports one input"),
        ({"inputs": {"text": PIECES, "language": LANGUAGE}}, "a tag belongs to a whole word; add"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    records = [{"text": "gift", "words": ["gift"], "language": "de", "tags": ["NOUN"]}]
    with pytest.raises(ConfigError, match=message):
        fit_artifacts(pipeline(tmp_path, **changes), records)


def test_a_record_without_the_second_input_is_refused(model: Model) -> None:
    with pytest.raises(DataError, match="no field 'language'; the record has: text; rename"):
        model({"text": "gift"})
