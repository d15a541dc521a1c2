"""The configuration is told wrong in every way that people get it wrong, and read right."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bad_yamls import BAD, GOOD, Bad, Mean, data, stage, top, toys

from seqpipe.config.loader import Config, load, resolved
from seqpipe.config.schema import AdamW, Cosine, Plateau
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, Problem
from seqpipe.features.parts import Part


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train.txt", "dev.txt"):
        (tmp_path / name).write_text("x\n")
    return tmp_path


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "pipeline.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return path


def read(folder: Path, text: str | bytes, *overrides: str, files: bool = True) -> Config:
    return load(write(folder, text), overrides, toys(), files)


def expected_problems(folder: Path, text: str | bytes, *overrides: str) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text, *overrides)
    return caught.value.problems


@pytest.mark.parametrize("bad", BAD, ids=[f"{number}-{bad.words[:40]}" for number, bad in enumerate(BAD)])
def test_every_mistake_is_told_with_its_place_and_its_cure_and_nothing_else(folder: Path, bad: Bad) -> None:
    problems = expected_problems(folder, bad.yaml)
    assert [f"{p.line}:{p.column}: {p.key}" for p in problems] == bad.places
    assert any(bad.words in p.message for p in problems), problems
    assert all(p.file == str(folder / "pipeline.yaml") for p in problems)


def test_a_fold_is_one_of_several_and_the_only_test_set(folder: Path) -> None:
    for fold in ("[3, 2]", "[1, 1]"):
        (problem,) = expected_problems(folder, GOOD, f"data.fold={fold}")
        assert (problem.key, "must be a number and a count of at least 2" in problem.message) == ("data.fold", True)
    (problem,) = expected_problems(folder, GOOD, "data.fold=[1, 2]", "data.test=0.1")
    assert (problem.key, "delete data.test, or data.fold" in problem.message) == ("data.test", True)


def test_folds_groups_and_added_files_are_read_again_from_the_resolved_yaml(folder: Path) -> None:
    config = read(folder, GOOD, "data.dev=0.2", "data.fold=[2, 3]", "data.group=doc", "data.add=[dev.txt]")
    part = config.data.tests["test"]
    assert part == Part(folder / "train.txt", "test", 0.2, 0.0, 1, "doc", (2, 3), (folder / "dev.txt",))
    written = resolved(config, folder / "runs" / "a")
    (folder / "runs/a").mkdir(parents=True)
    (folder / "runs/a/pipeline.yaml").write_text(dump(written))
    assert load(folder / "runs/a/pipeline.yaml", (), toys()).data == config.data


def test_a_member_that_is_nearly_an_optional_one_is_a_note(folder: Path) -> None:
    config = read(folder, GOOD)
    assert config.notes == []
    (head,) = config.head
    own = type("Own", (head.cls,), {"need_dev": None})
    (note,) = replace(config, head=(replace(head, cls=own),)).notes
    place = f"{folder / 'pipeline.yaml'}:{head.line}:{head.column}"
    assert note.startswith(f"note: {place}: head: head {head.use!r} of toys: its member 'need_dev' is not read")


def test_there_are_many_wrong_yamls() -> None:
    assert len({bad.yaml for bad in BAD}) >= 120


def test_a_short_yaml_gets_every_default(folder: Path) -> None:
    config = read(folder, GOOD)
    assert config.name == "pipeline"
    assert config.root == folder
    assert config.data.train == folder / "train.txt"
    assert config.data.tests == {}
    assert config.data.reader.options == {"separator": " ", "header": False}
    assert config.inputs[0].tokenizer.common_keys == {"field": "text", "init": None}
    assert config.inputs[0].encoder[0].cls is Mean
    assert config.inputs[0].encoder[0].options == {"hidden": 8, "dropout": 0.0}
    assert config.inputs[0].encoder[0].common_keys == {"init": None, "freeze": False, "lr": None}
    assert config.head[0].common_keys["weight"] == 1.0
    assert config.train.optimizer == AdamW(lr=0.002)
    assert (config.train.epochs, config.train.clip, config.export.opset) == (30, 5.0, 18)


def test_components_know_where_they_stand(folder: Path) -> None:
    config = read(folder, stage(embedding="[lookup, {dim: 3, use: chars}]"))
    assert [(stage.key, stage.line, stage.column) for stage in config.inputs[0].embedding] == [
        ("embedding.0", 6, 13),
        ("embedding.1", 6, 35),
    ]
    assert config.inputs[0].embedding[1].offer.distribution == "toys"


def test_several_test_sets_have_names(folder: Path) -> None:
    text = data("reader: lines", "train: train.txt", "test: {news: dev.txt, web: train.txt}")
    assert read(folder, text).data.tests == {"news": folder / "dev.txt", "web": folder / "train.txt"}
    assert read(folder, GOOD, "data.test=dev.txt").data.tests == {"test": folder / "dev.txt"}


def test_an_option_that_is_a_path_is_relative_to_the_yaml(folder: Path) -> None:
    config = read(folder, stage(embedding="{use: lookup, vectors: dev.txt}"))
    assert config.inputs[0].embedding[0].options["vectors"] == folder / "dev.txt"


def test_data_files_are_not_asked_for_when_not_wanted(folder: Path) -> None:
    text = GOOD.replace("train.txt", "no.txt")
    assert read(folder, text, files=False).data.train == folder / "no.txt"
    assert expected_problems(folder, text)


def test_a_head_that_writes_text_has_a_tokenizer_for_it(folder: Path) -> None:
    config = read(folder, stage(head="{use: writer, cells: 3, target_tokenizer: {use: words, min_count: 2}}"))
    tokenizer = config.head[0].common_keys["target_tokenizer"]
    assert (tokenizer.kind, tokenizer.options["min_count"], tokenizer.common_keys) == ("tokenizer", 2, {"init": None})
    same = read(folder, stage(head="{use: writer, cells: 3, target_tokenizer: same}"))
    assert same.head[0].common_keys["target_tokenizer"] == "same"


def test_an_encoder_that_asks_for_ids_needs_no_embedding(folder: Path) -> None:
    assert read(folder, stage(embedding="", encoder="from-ids")).inputs[0].embedding == ()


def test_a_stage_without_a_checkpoint_has_that_of_its_tokenizer(folder: Path) -> None:
    for name in ("mine", "other"):
        (folder / name).mkdir()
    text = (
        "data: {reader: conll, train: train.conll}\ntokenizer: {use: pretrained, checkpoint: mine}\n"
        "encoder: [pretrained, {use: pretrained, checkpoint: other}, words]\nhead: crf\n"
    )
    path = write(folder, text)
    first, second, _ = load(path, files=False).inputs[0].encoder
    assert first.options["checkpoint"] == folder / "mine"
    assert second.options["checkpoint"] == folder / "other"
    with pytest.raises(ConfigError) as caught:
        load(path, ["tokenizer=chars"], files=False)
    assert [problem.key for problem in caught.value.problems] == ["encoder.0.checkpoint"]


def test_a_yaml_that_is_not_there_is_told_with_the_path_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file; looked for .*no\.yaml"):
        load(tmp_path / "no.yaml", plugins=toys())
    with pytest.raises(ConfigError, match="is a directory"):
        load(tmp_path, plugins=toys())


def test_a_file_name_that_is_no_name_asks_for_one(folder: Path) -> None:
    path = folder / "my pipeline.yaml"
    path.write_text(GOOD)
    with pytest.raises(ConfigError, match=r"'my pipeline' is not valid"):
        load(path, plugins=toys())
    assert load(path, ["name=mine"], toys()).name == "mine"


# Overrides


def test_overrides_are_values_like_those_of_the_file(folder: Path) -> None:
    text = stage(embedding="[lookup, chars]", train="{optimizer: {use: sgd}}")
    config = read(
        folder,
        text,
        "train.epochs=3",
        "embedding.0.dim=50",
        "embedding.1.widths=[2, 3]",
        "train.optimizer={use: adamw, lr: 1e-4}",
        "train.schedule.use=cosine",
        "train.schedule.warmup_ratio=.1",
        "head.scheme='none'",
        "train.clip=",
        "encoder.freeze=true",
    )
    assert config.train.epochs == 3
    assert config.inputs[0].embedding[0].options["dim"] == 50
    assert config.inputs[0].embedding[1].options["widths"] == (2, 3)
    assert config.train.optimizer == AdamW(lr=1e-4)
    assert config.train.schedule == Cosine(warmup_ratio=0.1)
    assert config.head[0].options["scheme"] == "none"
    assert config.train.clip is None
    assert config.inputs[0].encoder[0].common_keys["freeze"] is True


def test_overrides_make_what_is_not_there_and_the_last_one_counts(folder: Path) -> None:
    config = read(folder, GOOD, "train.schedule=plateau", "train.schedule.factor=0.1", "train.seed=1", "train.seed=2")
    assert config.train.schedule == Plateau(factor=0.1)
    assert config.train.seed == 2


def test_a_component_alone_is_the_first_of_its_list_and_a_bare_name_takes_options(folder: Path) -> None:
    config = read(folder, stage(embedding="lookup", encoder="mean"), "embedding.0.dim=3", "encoder.hidden=4")
    assert config.inputs[0].embedding[0].options["dim"] == 3
    assert config.inputs[0].encoder[0].options["hidden"] == 4


@pytest.mark.parametrize(
    ("override", "key", "words"),
    [
        ("train.epochs=0", "train.epochs", "a whole number above 0, not 0"),
        ("train.epocs=3", "train.epocs", "did you mean 'epochs'?"),
        ("trian.epochs=3", "trian", "did you mean 'train'?"),
        ("encoder.hiden=3", "encoder.hiden", "'mean' has no such option; did you mean 'hidden'?"),
        ("encoder.use=maen", "encoder.use", "did you mean 'mean'?"),
        ("embedding.0.dim=x", "embedding.dim", "not 'x'"),
        ("embedding.1.dim=3", "embedding.1", "'lookup' has no such option"),
        ("name.x=3", "name.x", "'name' is 'pipe', which has no keys"),
        ("data.reader.separator=012", "data.reader.separator", "quote it ('012')"),
        ("data.reader.separator=\t", "data.reader.separator", "a tab is not allowed here"),
        ("data.reader.separator=#", "data.reader.separator", "the file is empty"),
        ("data.reader.separator=-", "data.reader.separator", "is not one value; put it in quotes"),
        ("name=a: b", "name", "is not one value"),
        ("name=[a", "name", "add the ']'"),
        ("name=*a", "name", "aliases are not read"),
        ("name=!x a", "name", "tags are not read"),
        ("data.train=no.txt", "data.train", "no such file 'no.txt'"),
        ("train.epochs", "", "an override is key=value"),
        ("=3", "", "an override is key=value"),
        ("train..epochs=3", "", "an override is key=value"),
        ("head.target_tokenizer.min_count=2", "head.target_tokenizer.use", "name the tokenizer"),
        ("name=\udcff", "name", "is not UTF-8"),
    ],
)
def test_a_wrong_override_is_told_as_one(folder: Path, override: str, key: str, words: str) -> None:
    problems = expected_problems(folder, GOOD + "name: pipe\n", override)
    assert [(p.file, p.line, p.key) for p in problems] == [(f"--set {override}", 0, key)]
    assert words in problems[0].message


def test_an_index_beyond_a_list_is_told(folder: Path) -> None:
    problems = expected_problems(folder, stage(embedding="[lookup, chars]"), "embedding.7.dim=3", "embedding.x.dim=3")
    assert all("write a number from 0 to 1" in p.message for p in problems)
    assert len(problems) == 2


def test_another_component_keeps_the_options_of_the_first_and_they_are_told(folder: Path) -> None:
    problems = expected_problems(folder, stage(encoder="{use: mean, hidden: 3}"), "encoder.use=from-ids")
    assert [(p.line, p.key) for p in problems] == [(7, "encoder.hidden")]
    assert "'from-ids' has no such option" in problems[0].message


def test_what_stood_in_the_file_before_an_override_is_forgotten_with_its_places(folder: Path) -> None:
    override = "encoder={use: mean, hidden: 0}"
    problems = expected_problems(folder, stage(encoder="{use: mean, hidden: 3, dropout: 7}"), override)
    assert [(p.file, p.line, p.key) for p in problems] == [(f"--set {override}", 0, "encoder.hidden")]


def test_overrides_and_the_file_are_told_together(folder: Path) -> None:
    problems = expected_problems(folder, top("trian: {}"), "train.epochs=0", "foo")
    assert [p.line for p in problems] == [0, 0, 9]


# The resolved file

FULL = """\
name: full
data:
  reader: {use: lines, separator: '1e-3'}
  train: train.txt
  dev: dev.txt
  test: {a: train.txt, b: dev.txt}
  misaligned: widen
tokenizer: {use: words, pattern: '\\w+ é #x: y'}
embedding:
  - {use: lookup, dim: 3, vectors: dev.txt, scale: .inf, lr: 1e-5}
  - {use: chars, widths: [1, 2]}
encoder: [mean, {use: toys/flat, freeze: true}, mean]
head: {use: writer, cells: 2, target: summary, target_tokenizer: {use: words, min_count: 7}}
train: {optimizer: {use: sgd, momentum: 0.9, nesterov: true}, schedule: {use: plateau}, clip: null, average: 0.999}
export: {opset: 20}
"""


@pytest.mark.parametrize("text", [GOOD, FULL, stage(head="{use: writer, cells: 1, target_tokenizer: same}")])
def test_the_resolved_file_is_read_as_the_same_config(folder: Path, tmp_path: Path, text: str) -> None:
    config = read(folder, text)
    elsewhere = tmp_path / "runs" / "x"
    elsewhere.mkdir(parents=True)
    for where in (None, elsewhere):
        plain = resolved(config, where)
        path = elsewhere / "resolved.yaml"
        path.write_text(dump(plain), encoding="utf-8")
        again = load(path, plugins=toys())
        assert again == config
        assert resolved(again, where) == plain


def test_the_resolved_file_has_every_default_and_paths_relative_to_its_folder(folder: Path) -> None:
    plain = resolved(read(folder, GOOD), folder / "runs")
    assert plain["data"]["train"] == "../train.txt"
    assert plain["encoder"] == {"use": "mean", "init": None, "freeze": False, "lr": None} | {
        "hidden": 8,
        "dropout": 0.0,
    }
    assert list(plain["train"]["optimizer"]) == ["use", "lr", "weight_decay", "betas", "eps"]
    assert list(plain["train"]["schedule"]) == ["use", "warmup_ratio"]


def test_a_changed_setting_is_another_config(folder: Path) -> None:
    assert read(folder, GOOD) != read(folder, GOOD, "encoder.hidden=9")
    assert read(folder, GOOD) != read(folder, GOOD, "encoder.freeze=true")
    assert read(folder, GOOD) == read(folder, "# a comment moves every line\n" + GOOD)


# Crash inputs

TOYS = toys()


def problems_of(path: Path, *overrides: str) -> list[Problem]:
    """The problems of a YAML, none if it is good; any other exception goes through."""
    try:
        load(path, overrides, TOYS)
    except ConfigError as error:
        return error.problems
    return []


def test_whatever_the_bytes_the_answer_is_a_config_or_problems(folder: Path) -> None:
    dice = random.Random(1)
    pieces = ["[", "]", "{", "}", ":", "-", "'", '"', "&a", "*a", "!x", "|", "?", "012", "ÿ", "\t", ": ", "\n", "  "]
    wrong = 0
    for _ in range(600):
        text = bytearray(FULL.encode())
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(text))
            text[at : at + dice.choice((0, 1, 8))] = dice.choice(pieces).encode("latin-1")
        problems = problems_of(write(folder, bytes(text)))
        wrong += bool(problems)
        assert all(p.message for p in problems)
    assert wrong > 300


def test_whatever_the_value_of_a_key_the_answer_is_a_config_or_problems(folder: Path) -> None:
    path = write(folder, FULL)
    values = ["", "3", "-1.5", "x", "[]", "{}", "[1, [2]]", "{use: {use: x}}", "[null]", "'\\0'"]
    keys = []

    def collect(node: object, path: str) -> None:
        for key, child in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
            keys.append(f"{path}{key}")
            collect(child, f"{path}{key}.")

    collect(resolved(load(path, plugins=TOYS)), "")
    assert len(keys) > 60
    for key in keys:
        for value in values:
            assert all(p.message for p in problems_of(path, f"{key}={value}"))


def test_reading_a_yaml_imports_no_torch_unless_a_component_does(folder: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1] / 'support')!r}); import bad_yamls; "
        "import seqpipe.config.loader as config; "
        f"config.load({str(write(folder, GOOD))!r}, (), bad_yamls.toys()); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")
