"""The configuration: defaults of a good YAML, problems of wrong ones, overrides, and the resolved file."""

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bad_yamls import BAD, FULL, GOOD, TOYS, Bad, Mean, data, keys, problems, stage, top, write

from seqpipe.config.loader import Config, load_config, resolved
from seqpipe.config.schema import AdamW, Cosine, Plateau
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, Problem
from seqpipe.features.parts import DataPart


def read(folder: Path, text: str | bytes, *overrides: str, files: bool = True) -> Config:
    return load_config(write(folder, text), overrides, TOYS, files)


def expected_problems(folder: Path, text: str | bytes, *overrides: str) -> list[Problem]:
    found = problems(write(folder, text), *overrides)
    assert found
    return found


@pytest.mark.parametrize("bad", BAD, ids=[f"{number}-{bad.words[:40]}" for number, bad in enumerate(BAD)])
def test_every_mistake_is_reported_with_its_place_and_its_fix_and_nothing_else(tmp_path: Path, bad: Bad) -> None:
    found = problems(write(tmp_path, bad.yaml))
    assert ", ".join(f"{p.line}:{p.column}: {p.key}" for p in found) == bad.places
    assert any(bad.words in p.message for p in found), found
    assert all(p.file == str(tmp_path / "pipeline.yaml") for p in found)


def test_a_fold_is_one_of_several_and_the_only_test_set(tmp_path: Path) -> None:
    for fold in ("[3, 2]", "[1, 1]"):
        (problem,) = expected_problems(tmp_path, GOOD, f"data.fold={fold}")
        assert (problem.key, "must be a number and a count of at least 2" in problem.message) == ("data.fold", True)
    (problem,) = expected_problems(tmp_path, GOOD, "data.fold=[1, 2]", "data.test=0.1")
    assert (problem.key, "delete data.test, or data.fold" in problem.message) == ("data.test", True)


def test_folds_groups_and_added_files_are_read_again_from_the_resolved_yaml(tmp_path: Path) -> None:
    config = read(tmp_path, GOOD, "data.dev=0.2", "data.fold=[2, 3]", "data.group=doc", "data.add=[dev.txt]")
    part = config.data.tests["test"]
    assert part == DataPart(tmp_path / "train.txt", "test", 0.2, 0.0, 1, "doc", (2, 3), (tmp_path / "dev.txt",))
    written = resolved(config, tmp_path / "runs" / "a")
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a/pipeline.yaml").write_text(dump(written))
    assert load_config(tmp_path / "runs/a/pipeline.yaml", (), TOYS).data == config.data


def test_a_member_that_is_nearly_an_optional_one_is_a_note(tmp_path: Path) -> None:
    config = read(tmp_path, GOOD)
    assert config.notes == []
    (head,) = config.head
    own = type("Own", (head.cls,), {"need_dev": None})
    (note,) = replace(config, head=(replace(head, cls=own),)).notes
    place = f"{tmp_path / 'pipeline.yaml'}:{head.line}:{head.column}"
    assert note.startswith(f"note: {place}: head: head {head.use!r} of toys: its member 'need_dev' is not read")


def test_a_short_yaml_gets_every_default(tmp_path: Path) -> None:
    config = read(tmp_path, GOOD)
    assert config.name == "pipeline"
    assert config.root == tmp_path
    assert config.data.train == tmp_path / "train.txt"
    assert config.data.tests == {}
    assert config.data.reader.options == {"separator": " ", "header": False}
    assert config.inputs[0].tokenizer.common_keys == {"field": "text", "init": None}
    assert config.inputs[0].encoder[0].cls is Mean
    assert config.inputs[0].encoder[0].options == {"hidden": 8, "dropout": 0.0}
    assert config.inputs[0].encoder[0].common_keys == {"init": None, "freeze": False, "lr": None}
    assert config.head[0].common_keys["weight"] == 1.0
    assert config.train.optimizer == AdamW(lr=0.002)
    assert (config.train.epochs, config.train.clip, config.export.opset) == (30, 5.0, 18)


def test_components_know_their_places(tmp_path: Path) -> None:
    first, second = read(tmp_path, stage(embedding="[lookup, {dim: 3, use: chars}]")).inputs[0].embedding
    assert (first.key, first.line, first.column) == ("embedding.0", 6, 13)
    assert (second.key, second.line, second.column) == ("embedding.1", 6, 35)
    assert second.offer.distribution == "toys"


def test_data_files_are_relative_to_the_yaml_and_several_test_sets_have_names(tmp_path: Path) -> None:
    text = data("reader: lines", "train: train.txt", "test: {news: dev.txt, web: train.txt}")
    assert read(tmp_path, text).data.tests == {"news": tmp_path / "dev.txt", "web": tmp_path / "train.txt"}
    assert read(tmp_path, GOOD, "data.test=dev.txt").data.tests == {"test": tmp_path / "dev.txt"}
    missing = GOOD.replace("train.txt", "no.txt")
    assert read(tmp_path, missing, files=False).data.train == tmp_path / "no.txt"
    assert expected_problems(tmp_path, missing)
    config = read(tmp_path, stage(embedding="{use: lookup, vectors: dev.txt}"))
    assert config.inputs[0].embedding[0].options["vectors"] == tmp_path / "dev.txt"


def test_a_head_that_writes_text_has_a_tokenizer_for_it(tmp_path: Path) -> None:
    config = read(tmp_path, stage(head="{use: writer, cells: 3, target_tokenizer: {use: words, min_count: 2}}"))
    tokenizer = config.head[0].common_keys["target_tokenizer"]
    assert (tokenizer.kind, tokenizer.options["min_count"], tokenizer.common_keys) == ("tokenizer", 2, {"init": None})
    same = read(tmp_path, stage(head="{use: writer, cells: 3, target_tokenizer: same}"))
    assert same.head[0].common_keys["target_tokenizer"] == "same"


def test_a_stage_without_a_checkpoint_has_that_of_its_tokenizer(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
    text = (
        "data: {reader: conll, train: train.conll}\ntokenizer: {use: pretrained, checkpoint: mine}\n"
        "encoder: [pretrained, {use: pretrained, checkpoint: other}, words]\nhead: crf\n"
    )
    path = write(tmp_path, text)
    first, second, _ = load_config(path, files=False).inputs[0].encoder
    assert first.options["checkpoint"] == tmp_path / "mine"
    assert second.options["checkpoint"] == tmp_path / "other"
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["tokenizer=chars"], files=False)
    assert [problem.key for problem in caught.value.problems] == ["encoder.0.checkpoint"]


def test_a_missing_yaml_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file; looked for .*no\.yaml"):
        load_config(tmp_path / "no.yaml", plugins=TOYS)
    with pytest.raises(ConfigError, match="is a directory"):
        load_config(tmp_path, plugins=TOYS)


def test_a_yaml_whose_file_name_is_not_valid_needs_a_name(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD).rename(tmp_path / "my pipeline.yaml")
    with pytest.raises(ConfigError, match=r"'my pipeline' is not valid"):
        load_config(path, plugins=TOYS)
    assert load_config(path, ["name=mine"], TOYS).name == "mine"


# Overrides


def test_overrides_are_values_like_those_of_the_file_and_the_last_one_counts(tmp_path: Path) -> None:
    overrides = [
        *("train.epochs=3", "train.clip=", "train.seed=1", "train.seed=2", "train.schedule={use: constant}"),
        *("train.schedule=plateau", "train.schedule.factor=0.1", "train.optimizer={use: adamw, lr: 1e-4}"),
        *("embedding.0.dim=50", "embedding.1.widths=[2, 3]", "head.scheme='none'", "encoder.freeze=true"),
    ]
    config = read(tmp_path, stage(embedding="[lookup, chars]", train="{optimizer: {use: sgd}}"), *overrides)
    assert (config.train.epochs, config.train.clip, config.train.seed) == (3, None, 2)
    assert (config.train.optimizer, config.train.schedule) == (AdamW(lr=1e-4), Plateau(factor=0.1))
    first, second = config.inputs[0].embedding
    assert (first.options["dim"], second.options["widths"]) == (50, (2, 3))
    assert (config.head[0].options["scheme"], config.inputs[0].encoder[0].common_keys["freeze"]) == ("none", True)
    cosine = read(tmp_path, GOOD, "train.schedule.use=cosine", "train.schedule.warmup_ratio=.1")
    assert cosine.train.schedule == Cosine(warmup_ratio=0.1)


def test_a_component_alone_is_the_first_of_its_list_and_a_bare_name_takes_options(tmp_path: Path) -> None:
    text = stage(embedding="lookup", encoder="mean")
    source = read(tmp_path, text, "embedding.0.dim=3", "encoder.hidden=4").inputs[0]
    assert (source.embedding[0].options["dim"], source.encoder[0].options["hidden"]) == (3, 4)


WRONG_OVERRIDES = [
    ("train.epochs=0", "train.epochs", "a whole number above 0, not 0"),
    ("train.epocs=3", "train.epocs", "did you mean 'epochs'?"),
    ("encoder.hiden=3", "encoder.hiden", "'mean' has no such option; did you mean 'hidden'?"),
    ("embedding.0.dim=x", "embedding.dim", "not 'x'"),
    ("embedding.1.dim=3", "embedding.1", "'lookup' has no such option"),
    ("name.x=3", "name.x", "'name' is 'pipe', which has no keys"),
    ("data.reader.separator=012", "data.reader.separator", "quote it ('012')"),
    ("data.reader.separator=\t", "data.reader.separator", "a tab is not allowed here"),
    ("data.reader.separator=-", "data.reader.separator", "is not one value; put it in quotes"),
    ("name=a: b", "name", "is not one value"),
    ("data.train=no.txt", "data.train", "no such file 'no.txt'"),
    ("data.train=$DATA/no.txt", "data.train", 'give it on the command line: data.train="$DATA/no.txt"'),
    ("data.train=${DATA}/*.txt", "data.train", "variables in a YAML are not replaced: write the path"),
    ("data.dev=~/no.txt", "data.dev", f"~ is not expanded: write {Path.home()}/no.txt"),
    ("encoder.init=$RUNS/a", "encoder.init", "variables in a YAML are not replaced: write the path"),
    ("train.teacher.path=~/runs/a", "train.teacher", f"~ is not expanded: write {Path.home()}/runs/a"),
    ("data.train=pointer.txt", "data.train", "is a pointer of Git LFS, not the file itself; run `git lfs pull`"),
    ("data.train=pointer*.txt", "data.train", "is a pointer of Git LFS"),
    ("train.epochs", "", "an override is key=value"),
    ("=3", "", "an override is key=value"),
    ("train..epochs=3", "", "an override is key=value"),
    ("head.target_tokenizer.min_count=2", "head.target_tokenizer.use", "name the tokenizer"),
    ("name=\udcff", "name", "is not UTF-8"),
]


@pytest.mark.parametrize(("override", "key", "words"), WRONG_OVERRIDES)
def test_a_wrong_override_is_reported_as_one(tmp_path: Path, override: str, key: str, words: str) -> None:
    (tmp_path / "pointer.txt").write_bytes(b"version https://git-lfs.github.com/spec/v1\nsize 9\n")
    (problem, *_) = found = expected_problems(tmp_path, GOOD + "name: pipe\n", override)
    assert [(p.file, p.line, p.key) for p in found] == [(f"--set {override}", 0, key)]
    assert words in problem.message


def test_an_index_beyond_a_list_is_refused(tmp_path: Path) -> None:
    text = stage(embedding="[lookup, chars]")
    first, second = expected_problems(tmp_path, text, "embedding.7.dim=3", "embedding.x.dim=3")
    assert "write a number from 0 to 1" in first.message
    assert "write a number from 0 to 1" in second.message


def test_another_component_keeps_the_options_of_the_first_and_they_are_refused(tmp_path: Path) -> None:
    (problem,) = expected_problems(tmp_path, stage(encoder="{use: mean, hidden: 3}"), "encoder.use=from-ids")
    assert (problem.line, problem.key) == (7, "encoder.hidden")
    assert "'from-ids' has no such option" in problem.message


def test_an_override_replaces_the_value_in_the_file_with_its_places(tmp_path: Path) -> None:
    override = "encoder={use: mean, hidden: 0}"
    (problem,) = expected_problems(tmp_path, stage(encoder="{use: mean, hidden: 3, dropout: 7}"), override)
    assert (problem.file, problem.line, problem.key) == (f"--set {override}", 0, "encoder.hidden")


def test_problems_of_overrides_and_of_the_file_are_reported_together(tmp_path: Path) -> None:
    assert [p.line for p in expected_problems(tmp_path, top("trian: {}"), "train.epochs=0", "foo")] == [0, 0, 9]


# The resolved file


@pytest.mark.parametrize("text", [GOOD, FULL, stage(head="{use: writer, cells: 1, target_tokenizer: same}")])
def test_the_resolved_file_is_read_as_the_same_config(tmp_path: Path, text: str) -> None:
    config = read(tmp_path, text)
    run = tmp_path / "runs/x"
    run.mkdir(parents=True)
    for base in (None, run):
        plain = resolved(config, base)
        (run / "resolved.yaml").write_text(dump(plain), encoding="utf-8")
        again = load_config(run / "resolved.yaml", plugins=TOYS)
        assert again == config
        assert resolved(again, base) == plain


def test_the_resolved_file_has_every_default_and_paths_relative_to_its_folder(tmp_path: Path) -> None:
    plain = resolved(read(tmp_path, GOOD), tmp_path / "runs")
    assert plain["data"]["train"] == "../train.txt"
    options = {"hidden": 8, "dropout": 0.0}
    assert plain["encoder"] == {"use": "mean", "init": None, "freeze": False, "lr": None} | options
    assert list(plain["train"]["optimizer"]) == ["use", "lr", "weight_decay", "betas", "eps"]
    assert list(plain["train"]["schedule"]) == ["use", "warmup_ratio"]


def test_a_changed_setting_is_another_config(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD) != read(tmp_path, GOOD, "encoder.hidden=9")
    assert read(tmp_path, GOOD) != read(tmp_path, GOOD, "encoder.freeze=true")
    assert read(tmp_path, GOOD) == read(tmp_path, "# a comment moves every line\n" + GOOD)


# Crash inputs


def test_any_value_of_any_key_gives_a_config_or_problems(tmp_path: Path) -> None:
    path, dice = write(tmp_path, FULL), random.Random(1)
    values = ["", "3", "-1.5", "x", "[]", "{}", "[1, [2]]", "{use: {use: x}}", "[null]", "'\\0'"]
    dotted = [".".join(map(str, steps)) for steps in keys(resolved(load_config(path, plugins=TOYS)))]
    assert len(dotted) > 60
    for key in dotted:
        for value in dice.sample(values, 4):
            assert all(p.message for p in problems(path, f"{key}={value}"))


def test_reading_a_yaml_imports_no_torch_unless_a_component_does(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1] / 'support')!r}); import bad_yamls; "
        "import seqpipe.config.loader as config; "
        f"config.load_config({str(write(tmp_path, GOOD))!r}, (), bad_yamls.TOYS); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_an_override_of_a_yaml_that_is_no_mapping_adds_no_problem(tmp_path: Path) -> None:
    assert len(expected_problems(tmp_path, "- a\n", "train.epochs=3")) == 1


def test_data_in_place_of_a_yaml_get_the_command_that_writes_one(tmp_path: Path) -> None:
    (tmp_path / "my data.csv").write_text("text,label\na,b\n")
    with pytest.raises(ConfigError, match=r"to write one for this data: seqpipe init '.*my data\.csv'"):
        load_config(tmp_path / "my data.csv")
