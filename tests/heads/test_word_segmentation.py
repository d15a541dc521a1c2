"""Word segmentation from YAML to bundle, and a tokenizer whose words are the decisions of that bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from factory import Done, seqpipe

from seqpipe import load
from seqpipe_plugins.tokenizers.lexicon import Lexicon

DATA = Path(__file__).parent.parent.parent / "pipelines" / "data" / "segments"
SEGMENTER = {
    "name": "segmenter",
    "data": {"reader": "segmented", "train": "train.txt", "dev": "dev.txt", "test": "dev.txt"},
    "tokenizer": {"use": "chars", "keep_spaces": False},
    "embedding": {"use": "lookup", "dim": 24},
    "encoder": {"use": "conv", "layers": 1, "width": 3},
    "head": {"use": "crf", "scheme": "BMES"},
    "train": {"epochs": 4, "batch_tokens": 256, "optimizer": {"use": "adamw", "lr": 0.02}, "threads": 1},
}
READER = {
    "name": "reader",
    "data": {"reader": "tsv", "train": "labels.tsv", "dev": "labels.tsv"},
    "tokenizer": {"use": "lexicon", "run": "runs/segmenter"},
    "embedding": {"use": "lookup", "dim": 8},
    "encoder": "bag",
    "head": "label",
    "train": {"epochs": 1, "threads": 1},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained segmenter and the YAML of a pipeline that reads its words."""
    folder = tmp_path_factory.mktemp("segmentation")
    for part, count in (("train", 300), ("dev", 60)):
        lines = (DATA / f"{part}.txt").read_text(encoding="utf-8").splitlines()[:count]
        (folder / f"{part}.txt").write_text("\n".join(lines), encoding="utf-8")
    texts = [line.replace(" ", "") for line in (folder / "train.txt").read_text(encoding="utf-8").splitlines()[:120]]
    rows = [f"{text}\t{'ab'['的' in text]}" for text in texts]
    (folder / "labels.tsv").write_text("\n".join(["text\tlabel", *rows]), encoding="utf-8")
    for content in (SEGMENTER, READER):
        (folder / f"{content['name']}.yaml").write_text(json.dumps(content), encoding="utf-8")
    done = seqpipe("run", "segmenter.yaml", "--device", "cpu", folder=folder)
    assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> Done:
    return seqpipe("train", "reader.yaml", "--device", "cpu", folder=folder)


def places(words: list[str]) -> set[tuple[int, int]]:
    ends = [sum(map(len, words[: i + 1])) for i in range(len(words))]
    return {(end - len(word), end) for word, end in zip(words, ends, strict=True)}


def test_the_answer_to_a_raw_text_is_its_words_with_offsets_and_the_score_is_word_f1(folder: Path) -> None:
    model = load(folder / "runs" / "segmenter" / "bundle", "cpu")
    assert model.manifest.answer["labels"] == ["B-word", "M-word", "E-word", "S-word"]
    sentences = [line.split() for line in (folder / "dev.txt").read_text(encoding="utf-8").splitlines()]
    correct = total = 0
    for words, answer in zip(sentences, model("".join(words) for words in sentences), strict=True):
        assert "".join(span["word"] for span in answer) == "".join(words)  # no character is left out
        assert all(span["word"] == "".join(words)[span["start"] : span["end"]] for span in answer)
        gold, found = places(words), {(span["start"], span["end"]) for span in answer}
        correct, total = correct + len(gold & found), total + len(gold) + len(found)
    scores = json.loads(seqpipe("evaluate", "runs/segmenter/bundle", "--json", folder=folder).out)
    raw = [value for name, value in scores.items() if name.startswith("test")]
    assert raw
    assert all(value["f1"] == pytest.approx(2 * correct / total) for value in raw)
    assert 2 * correct / total > 0.6


def test_blanks_in_a_text_are_in_no_word_of_their_own(folder: Path) -> None:
    answer = load(folder / "runs" / "segmenter" / "bundle", "cpu")("我们 喜欢\u3000音乐 。")
    assert "".join("".join(span["word"].split()) for span in answer) == "我们喜欢音乐。"
    assert all(span["word"].strip() == span["word"] != "" for span in answer)


def test_the_lexicon_of_a_run_is_the_words_of_its_bundle_on_the_training_texts(folder: Path, trained: Done) -> None:
    assert trained.code == 0, trained.err
    run = folder / "runs" / "segmenter"
    texts = [row.partition("\t")[0] for row in (folder / "labels.tsv").read_text(encoding="utf-8").split("\n")[1:]]
    sentences = [[span["word"] for span in answer] for answer in load(run / "bundle", "cpu")(texts)]
    tokenizer = Lexicon(run=run).train(texts)
    assert tokenizer.to_str() == Lexicon(run=run / "bundle").train(texts).to_str()
    assert (
        json.loads(tokenizer.to_str())["pre_tokenizer"]
        == json.loads(Lexicon().train(sentences).to_str())["pre_tokenizer"]
    )
    correct = total = 0
    for text, words in zip(texts, sentences, strict=True):
        gold, found = places(words), {*tokenizer.encode(text, add_special_tokens=False).offsets}
        correct, total = correct + len(gold & found), total + len(gold) + len(found)
    message = f"the lexicon splits {len(texts)} dev texts like the run segmenter: {2 * correct / total:.2%} word F1"
    assert message in trained.out + trained.err
    assert 0.8 < 2 * correct / total < 1


def test_another_segmenter_makes_another_run(folder: Path, trained: Done) -> None:
    assert trained.code == 0
    manifest = folder / "runs" / "segmenter" / "bundle" / "bundle.json"
    content = manifest.read_bytes()
    manifest.write_bytes(content + b"\n")
    try:
        again = seqpipe("train", "reader.yaml", "--device", "cpu", folder=folder)
    finally:
        manifest.write_bytes(content)
    assert again.code == 2
    assert "tokenizer.run: the file's content changed" in again.err
    assert seqpipe("train", "reader.yaml", "--device", "cpu", folder=folder).code == 0


def test_a_changed_lexicon_file_makes_another_run(folder: Path) -> None:
    path = folder / "words.txt"
    path.write_text("音乐\n", encoding="utf-8")
    command = ("train", "reader.yaml", "name=file", "tokenizer.run=null", "tokenizer.path=words.txt", "--device", "cpu")
    assert seqpipe(*command, folder=folder).code == 0
    path.write_text("音乐\n喜欢\n", encoding="utf-8")
    again = seqpipe(*command, folder=folder)
    assert (again.code, "tokenizer.path: the file's content changed" in again.err) == (2, True)


def test_a_folder_without_a_bundle_and_one_that_is_not_there_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    check = seqpipe("check", "reader.yaml", f"tokenizer.run={tmp_path / 'empty'}", folder=folder)
    assert (check.code, "no bundle of a segmenter" in check.err) == (3, True)
    missing = seqpipe("check", "--static", "reader.yaml", "tokenizer.run=runs/nothing", folder=folder)
    assert (missing.code, "tokenizer.run: no such folder 'runs/nothing'" in missing.err) == (2, True)


def test_a_run_that_is_no_segmenter_is_refused(folder: Path, trained: Done) -> None:
    assert trained.code == 0
    done = seqpipe("export", "runs/reader", folder=folder)
    assert done.code == 0, done.err
    check = seqpipe("check", "reader.yaml", "tokenizer.run=runs/reader", folder=folder)
    assert check.code == 3
    assert "its answers are 'label', not words; name the run of a segmenter, whose head has scheme: BMES" in check.err


def test_split_data_needs_no_run(folder: Path) -> None:
    (folder / "split.jsonl").write_text('{"words": ["音乐"], "label": "a"}\n' * 3, encoding="utf-8")
    data = ("data.train=split.jsonl", "data.dev=null", "data.reader=jsonl")
    check = seqpipe("check", "reader.yaml", *data, folder=folder)
    assert (check.code, "which are the lexicon; delete `run`" in check.err) == (3, True)


def test_a_token_in_no_word_is_refused_with_the_cure(folder: Path) -> None:
    spans = [{"start": start, "end": end, "label": "word"} for start, end in ((0, 2), (3, 4))]
    (folder / "gaps.jsonl").write_text(json.dumps({"text": "音乐 好", "spans": spans}) + "\n", encoding="utf-8")
    data = ("data.reader=jsonl", "data.train=gaps.jsonl", "data.dev=null", "data.test=null")
    check = seqpipe("check", "segmenter.yaml", *data, "tokenizer.keep_spaces=true", folder=folder)
    assert check.code == 3
    assert "the token ' ' at 2 is in no span, which BMES requires; use a tokenizer that drops white space" in check.err
