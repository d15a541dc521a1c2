"""Word segmentation from YAML to bundle, and a tokenizer whose words are the decisions of that bundle."""

import json
from pathlib import Path

import pytest
from gallery import train_settings
from tiny_pipelines import CommandResult, fail_with, seqpipe, succeed

from seqpipe import Model, load
from seqpipe_plugins.tokenizers.lexicon import Lexicon

DATA = Path(__file__).parent.parent.parent / "pipelines" / "data" / "segments"
SEGMENTER = {
    "name": "segmenter",
    "data": {"reader": "segmented", "train": "train.txt", "dev": "dev.txt", "test": "dev.txt"},
    "tokenizer": {"use": "chars", "keep_spaces": False},
    "embedding": {"use": "lookup", "dim": 24},
    "encoder": {"use": "conv", "layers": 1, "width": 3},
    "head": {"use": "crf", "scheme": "BMES"},
    "train": train_settings(4, tokens=256),
}
READER = {
    "name": "reader",
    "data": {"reader": "tsv", "train": "labels.tsv", "dev": "labels.tsv"},
    "tokenizer": {"use": "lexicon", "run": "runs/segmenter"},
    "embedding": {"use": "lookup", "dim": 8},
    "encoder": "bag",
    "head": "label",
    "train": train_settings(1),
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
    succeed("run", "segmenter.yaml", "--device", "cpu", folder=folder)
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> CommandResult:
    done = succeed("run", "reader.yaml", "--device", "cpu", folder=folder)
    return done


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder / "runs" / "segmenter" / "bundle", "cpu")


def places(words: list[str]) -> set[tuple[int, int]]:
    ends = [sum(map(len, words[: i + 1])) for i in range(len(words))]
    return {(end - len(word), end) for word, end in zip(words, ends, strict=True)}


def word_f1(expected: list[set[tuple[int, int]]], predicted: list[set[tuple[int, int]]]) -> float:
    correct = sum(len(first & second) for first, second in zip(expected, predicted, strict=True))
    return 2 * correct / sum(map(len, [*expected, *predicted]))


def test_the_answer_to_a_raw_text_is_its_words_and_the_score_is_word_f1(folder: Path, model: Model) -> None:
    assert model.manifest.answer["labels"] == ["B-word", "M-word", "E-word", "S-word"]
    sentences = [line.split() for line in (folder / "dev.txt").read_text(encoding="utf-8").splitlines()]
    answers = [*model("".join(words) for words in sentences)]
    for words, answer in zip(sentences, answers, strict=True):
        assert "".join(span["word"] for span in answer) == "".join(words)  # no character is left out
        assert all(span["word"] == "".join(words)[span["start"] : span["end"]] for span in answer)
    predicted = [{(span["start"], span["end"]) for span in answer} for answer in answers]
    expected = word_f1([places(words) for words in sentences], predicted)
    scores = json.loads(seqpipe("evaluate", "runs/segmenter/bundle", "--json", folder=folder).out)
    raw = [value["f1"] for name, value in scores.items() if name.startswith("test")]
    assert raw == pytest.approx([expected] * len(raw))
    assert raw
    assert expected > 0.6


def test_blanks_in_a_text_are_in_no_word(model: Model) -> None:
    answer = model("我们 喜欢\u3000音乐 。")
    assert "".join("".join(span["word"].split()) for span in answer) == "我们喜欢音乐。"
    assert all(span["word"].strip() == span["word"] != "" for span in answer)


def test_the_lexicon_of_a_run_is_the_words_of_its_bundle(folder: Path, model: Model, trained: CommandResult) -> None:
    run = folder / "runs" / "segmenter"
    texts = [row.partition("\t")[0] for row in (folder / "labels.tsv").read_text(encoding="utf-8").split("\n")[1:]]
    sentences = [[span["word"] for span in answer] for answer in model(texts)]
    tokenizer = Lexicon(run=run).train(texts)
    assert tokenizer.to_str() == Lexicon(run=run / "bundle").train(texts).to_str()
    lexicons = [json.loads(each.to_str())["pre_tokenizer"] for each in (tokenizer, Lexicon().train(sentences))]
    assert lexicons[0] == lexicons[1]
    units = [{*tokenizer.encode(text, add_special_tokens=False).offsets} for text in texts]
    f1 = word_f1([places(words) for words in sentences], units)
    message = f"the lexicon splits {len(texts)} dev texts like the run segmenter: {f1:.2%} word F1"
    assert message in trained.out + trained.err
    assert 0.8 < f1 < 1


def test_another_segmenter_makes_another_run(folder: Path, trained: CommandResult) -> None:
    manifest = folder / "runs" / "segmenter" / "bundle" / "bundle.json"
    content = manifest.read_bytes()
    manifest.write_bytes(content + b"\n")
    try:
        again = seqpipe("train", "reader.yaml", "--device", "cpu", folder=folder)
    finally:
        manifest.write_bytes(content)
    assert (again.code, "tokenizer.run: the file's content changed" in again.err) == (2, True)
    assert seqpipe("train", "reader.yaml", "--device", "cpu", folder=folder).code == 0


SPLIT = "reader.yaml data.train=split.jsonl data.dev=null data.reader=jsonl"
GAPS = "segmenter.yaml data.reader=jsonl data.train=gaps.jsonl data.dev=null data.test=null tokenizer.keep_spaces=true"
IN_NO_SPAN = "the token ' ' at 2 is in no span, which BMES requires; use a tokenizer that drops white space"
NO_SEGMENTER = "its answers are 'label', not words; name the run of a segmenter, whose head has scheme: BMES"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("reader.yaml tokenizer.run=runs", 3, "no bundle of a segmenter"),
        ("--static reader.yaml tokenizer.run=runs/none", 2, "tokenizer.run: no such folder 'runs/none'"),
        ("reader.yaml tokenizer.run=runs/reader", 3, NO_SEGMENTER),
        (SPLIT, 3, "which are the lexicon; delete `run`"),
        (GAPS, 3, IN_NO_SPAN),
    ],
)
@pytest.mark.usefixtures("trained")
def test_misfits_are_refused_by_check(folder: Path, arguments: str, code: int, message: str) -> None:
    (folder / "split.jsonl").write_text('{"words": ["音乐"], "label": "a"}\n' * 3, encoding="utf-8")
    spans = [{"start": start, "end": end, "label": "word"} for start, end in ((0, 2), (3, 4))]
    (folder / "gaps.jsonl").write_text(json.dumps({"text": "音乐 好", "spans": spans}) + "\n", encoding="utf-8")
    fail_with(code, message, "check", *arguments.split(), folder=folder)
