"""A run resumes, does nothing, or names what changed; it never overwrites files that it did not write."""

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import Install
from gallery import gallery
from tiny_checkpoints import checkpoint
from tiny_pipelines import (
    QUIET,
    SMALL_TAGGER,
    BatchCallback,
    begin_run,
    load_tagger,
    seqpipe,
    train_run,
    write_conll,
    write_tagger,
)

from seqpipe.config.loader import Config, load_config
from seqpipe.console import Console
from seqpipe.errors import DataError, EnvError, UsageError
from seqpipe.runs.full_run import RunOptions, run_all
from seqpipe.runs.run_folder import differences, fingerprint, load_trained, open_run
from seqpipe.runs.train import resolve_device
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.data_forms import data_form
from seqpipe.training.datasets import load_records
from seqpipe.training.fit import fit_artifacts
from seqpipe.version import VERSION


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a finished run, in which the tests stand."""
    folder = gallery("spans").copy(tmp_path_factory.mktemp("finished")).folder
    with contextlib.chdir(folder):
        yield folder


def again(*overrides: str) -> Config:
    return load_config(Path("tiny.yaml").absolute(), overrides)


def refusal(*overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        begin_run(again(*overrides))
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_run_has_these_files(finished: Path) -> None:
    run = finished / "runs/tiny"
    names = ".lock .lock-holder.json run.json pipeline.yaml learned.json tokenizer.json checkpoints training.json"
    assert {path.name for path in run.iterdir()} == {
        *names.split(),
        "facts.json",
        "intervals.json",
        "answers.jsonl",
        "metrics.json",
        "bundle",
    }
    assert set(json.loads((run / "metrics.json").read_text())) == {"test"}
    bundle_files = {path.name for path in (run / "bundle").iterdir()}
    assert bundle_files == {"bundle.json", "model.onnx", "tokenizer.json", "README.md"}


def test_an_unchanged_finished_run_does_nothing_and_says_so(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def written() -> dict[Path, int]:
        files = [path for path in (finished / "runs").rglob("*") if path.is_file()]
        return {path: path.stat().st_mtime_ns for path in files if not path.name.startswith(".lock")}

    before = written()
    result = run_all(again(), Console(), RunOptions("cpu"))
    assert written() == before
    assert result.scores == json.loads((finished / "runs/tiny/metrics.json").read_text())
    assert "nothing changed: nothing to do (--fresh trains again)" in capsys.readouterr().err


def test_the_saved_yaml_is_the_same_pipeline_with_every_setting(finished: Path, tmp_path: Path) -> None:
    text = (finished / "runs/tiny/pipeline.yaml").read_text()
    assert "direction: both" in text
    assert "../../train.conll" in text
    with contextlib.chdir(tmp_path):  # it can be read from anywhere
        opened = open_run(finished / "runs/tiny", QUIET).config
    config = again()
    assert fingerprint(opened) == fingerprint(config)
    for role in ("train", "dev", "tests"):
        assert getattr(opened.data, role) == getattr(config.data, role)


def test_the_saved_yaml_has_the_versions(folder: Path, install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    code = "from tiny_pipelines import toy_encoders\nfrom seqpipe.plugin import hookimpl\n@hookimpl\n"
    install("seqpipe-toy", f"{code}def register_encoders(): return {{'sound': toy_encoders()['sound'][1]}}\n")
    run = begin_run(load_config(write_tagger(folder), ["encoder=[sound]", "plugins.allow=[seqpipe-toy]"]))
    keys = ("data.reader", "tokenizer", "embedding.0", "embedding.1", "head")
    versions = dict.fromkeys(keys, f"seqpipe-nlp {VERSION}") | {"encoder": "seqpipe-toy 1.0"}
    assert load_config(run.folder / "pipeline.yaml").plugins.versions == versions
    open_run(run.folder, Console())
    assert capsys.readouterr().err == ""
    (info,) = (folder / "site").glob("seqpipe_toy-*.dist-info")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: seqpipe-toy\nVersion: 1.1\n")
    open_run(run.folder, Console())
    message = "encoder was made with seqpipe-toy 1.0; here it is seqpipe-toy 1.1"
    assert capsys.readouterr().err == f"note: {run.folder / 'pipeline.yaml'}: {message}\n"
    run.checkpoints.mkdir()
    (run.checkpoints / "last.ckpt").touch()
    with pytest.raises(UsageError, match=r"components.encoder sound: seqpipe-toy 1.0 -> seqpipe-toy 1.1"):
        begin_run(load_config(write_tagger(folder), ["encoder=sound"]))


def test_a_changed_yaml_is_refused_naming_every_change(finished: Path) -> None:
    message = refusal("train.epochs=7", "encoder.hidden=9", "train.seed=5")
    assert "runs/tiny was made from other inputs:" in message
    for line in ("encoder.hidden: 6 -> 9", "train.epochs: 12 -> 7", "train.seed: 1 -> 5"):
        assert f"\n  {line}" in message
    assert "--fresh" in message
    assert message.count("->") == 3


def test_changed_data_is_refused_naming_the_file_and_moved_data_is_not(finished: Path, tmp_path: Path) -> None:
    for role in ("train", "test"):
        file = finished / f"{role}.conll"
        content = file.read_bytes()
        write_conll(file, 20, 99)
        message = refusal()
        file.write_bytes(content)
        assert f"\n  data.{role}: the file's content changed" in message
    begin_run(again())
    shutil.copy("train.conll", tmp_path / "moved.conll")
    begin_run(again(f"data.train={tmp_path / 'moved.conll'}"))


def test_a_test_set_named_train_hides_nothing(folder: Path) -> None:
    config = load_tagger(folder, "data.test={train: test.conll, dev: dev.conll}")
    before = fingerprint(config)
    write_conll(folder / "train.conll", 20, 99)
    assert differences(before, fingerprint(config)) == ["data.train: the file's content changed"]


def test_every_file_that_belongs_to_the_data_counts(folder: Path) -> None:
    for name, line in (("a.in", "x"), ("a.out", "O"), ("a.label", "y")):
        (folder / name).write_text(f"{line}\n" * 3)
    reader = "data.reader={use: parallel, fields: {words: '*.in', tags: '*.out', topic: '*.label'}}"
    config = load_tagger(folder, reader, "data.train=a.in", "data.dev=null", "data.test=null", "train.patience=null")
    before = fingerprint(config)
    assert len(before["data"]["train"]) == 3
    (folder / "a.label").write_text("z\n" * 3)
    assert differences(before, fingerprint(config)) == ["data.train.2: the file's content changed"]
    (folder / "a.label").unlink()
    with pytest.raises(DataError, match=r"there is no file .*a\.label beside it for `topic`"):
        fingerprint(config)


def test_a_file_that_an_option_names_counts_by_its_content_and_may_move(folder: Path) -> None:
    vectors = folder / "some.vec"
    vectors.write_text("Ada 1 2\nOslo 3 4\n")
    config = load_tagger(folder, "embedding=[{use: vectors, path: some.vec}]")
    before = fingerprint(config)
    (folder / "moved").mkdir()
    shutil.copy(vectors, folder / "moved")
    moved = load_tagger(folder, "embedding=[{use: vectors, path: moved/some.vec}]")
    assert differences(before, fingerprint(moved)) == []
    vectors.write_text("Ada 1 2\nOslo 3 5\n")
    assert differences(before, fingerprint(config)) == ["embedding.path: the file's content changed"]


def test_a_checkpoint_counts_by_the_content_of_its_files(folder: Path) -> None:
    bert = checkpoint(folder / "bert", "bert", ["Ada flew to Oslo"] * 4)
    config = load_tagger(folder, "embedding=[]", f"encoder={{use: pretrained, checkpoint: {bert}}}")
    before = fingerprint(config)
    (bert / "vocab.txt").write_text("another\n")
    assert differences(before, fingerprint(config)) == ["encoder.checkpoint.vocab.txt: the file's content changed"]


def test_fresh_moves_the_old_run_aside_if_no_mode_is_wrong(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_tagger(folder, *SMALL_TAGGER)
    for number in range(3):
        (begin_run(config, fresh=number > 0).folder / f"mark-{number}").touch()
    monkeypatch.setenv("SEQPIPE_FEATURES", "maped")
    with pytest.raises(UsageError, match="SEQPIPE_FEATURES=maped: must be auto, memory or mapped"):
        begin_run(config, fresh=True)
    marks = {"tiny": "mark-2", "tiny.1": "mark-0", "tiny.2": "mark-1"}
    assert {path.parent.name: path.name for path in folder.glob("runs/*/mark*")} == marks
    assert len(os.listdir("runs")) == 3


def test_a_folder_that_is_no_run_is_left_alone(folder: Path) -> None:
    run = folder / "runs/tiny"
    run.mkdir(parents=True)
    begin_run(load_tagger(folder))  # an empty one is taken
    (run / "run.json").rename(run / "thesis.tex")
    with pytest.raises(UsageError, match="exists and is not a run; give the YAML another name: or move the folder"):
        begin_run(load_tagger(folder), fresh=True)
    with pytest.raises(UsageError, match=r"not a run \(no run.json\)"):
        open_run(run, QUIET)


def test_a_run_that_was_killed_as_it_began_begins(folder: Path) -> None:
    run = folder / "runs/tiny"
    run.mkdir(parents=True)
    (run / "pipeline.yaml").write_text("name: ti")
    (run / ".run.json.x.part").write_text("{")
    begin_run(load_tagger(folder))
    assert sorted(os.listdir(run)) == [".lock", ".lock-holder.json", "pipeline.yaml", "run.json"]
    open_run(run, QUIET)


def test_an_untrained_run_has_nothing_to_show(folder: Path) -> None:
    class StopError(Exception): ...

    def stop(count: int) -> None:
        raise StopError

    config = load_tagger(folder, *SMALL_TAGGER, "train.checkpoint_steps=1")
    with pytest.raises(UsageError, match="not trained yet; run `seqpipe train` or `seqpipe run` first"):
        load_trained(begin_run(config))
    with pytest.raises(StopError):
        train_run(config, BatchCallback(stop))
    with pytest.raises(UsageError, match="stopped before the first epoch ended"):
        load_trained(open_run(folder / "runs/tiny", QUIET))


def test_parity_is_shown_on_test_else_dev_else_train(folder: Path) -> None:
    def sizes(*overrides: str) -> int:
        return len(data_form(load_tagger(folder, *overrides)).compared_records(folder))

    assert [sizes(), sizes("data.test=null"), sizes("data.test=null", "data.dev=null")] == [16, 12, 36]


def test_a_device_that_is_not_there_is_an_error() -> None:
    assert resolve_device("cpu") == "cpu"
    with pytest.raises(UsageError, match="must be auto, cpu, cuda or cuda:N"):
        resolve_device("gpu")
    if not torch.cuda.is_available():
        assert resolve_device("auto") == "cpu"
        with pytest.raises(EnvError, match="has no CUDA device; see `seqpipe doctor`"):
            resolve_device("cuda:0")


def test_unseen_labels_are_listed_or_count_as_missed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, dev = load_tagger(folder, *SMALL_TAGGER, "train.epochs=1"), folder / "dev.conll"
    dev.write_text("".join(f"Ada\tB-{label}\n\n" for label in ("per", "A", "B", "C", "D", "PER")))
    examples = f"'per' ({dev}:1, training has 'PER'); 'A' ({dev}:3); 'B' ({dev}:5); and 2 more"
    message = f"the dev set has 5 labels that training never saw: {examples}"
    with pytest.raises(DataError, match=re.escape(f"{message}\n")):
        train_run(config)
    assert not (folder / "runs/tiny/checkpoints").exists()
    train_run(load_config(config.file, [*SMALL_TAGGER, "train.epochs=1", "data.unseen_labels=miss"]), Console())
    relative = message.replace(f"{folder}/", "")
    assert f"{relative}; such a label counts as missed" in capsys.readouterr().err


def test_a_damaged_run_file_is_an_error_that_names_the_cure(tmp_path: Path) -> None:
    (tmp_path / "learned.json").write_text('{"field": ')
    with pytest.raises(DataError, match=r"learned\.json: damaged: .*--fresh"):
        Artifacts.load(tmp_path)


def untrained(config: Config) -> Path:
    """The folder of a run that has the artifacts of its data, and no weights."""
    folder: Path = begin_run(config).folder
    Artifacts.save(fit_artifacts(config, load_records(config.data.reader, config.data.train)), folder)
    return folder


def test_a_run_that_never_trained_keeps_nothing_of_other_data(folder: Path) -> None:
    config = load_tagger(folder, *SMALL_TAGGER)
    run = untrained(config)
    (run / "tokens").mkdir()
    (run / "tokens/train.bin").write_bytes(b"of other texts")
    begin_run(config)
    assert (run / "tokens/train.bin").exists()  # nothing changed
    write_conll(folder / "train.conll", 20, 99)
    begin_run(config)
    assert sorted(os.listdir(run)) == [".lock", ".lock-holder.json", "pipeline.yaml", "run.json"]
    assert json.loads((run / "run.json").read_text())["fingerprint"] == fingerprint(config)


def test_a_run_killed_as_it_starts_anew_starts_anew_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class KilledError(Exception): ...

    def kill(path: Path, data: str) -> None:
        raise KilledError

    config = load_tagger(folder, *SMALL_TAGGER)
    run = untrained(config)
    changed = load_config(config.file, [*SMALL_TAGGER, "tokenizer=chars"])
    monkeypatch.setattr("seqpipe.files.write", kill)
    with pytest.raises(KilledError):
        begin_run(changed)
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    begin_run(changed)
    assert load_config(run / "pipeline.yaml").tokenizers[0].use == "chars"


def test_the_rows_of_all_epochs_are_there_after_a_kill_between_checkpoint_and_rows(folder: Path) -> None:
    config = load_tagger(folder, *SMALL_TAGGER)
    train_run(config)
    path = folder / "runs/tiny/checkpoints/metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole.splitlines(keepends=True)[0])  # as it was when the last checkpoint was written
    train_run(config)
    assert path.read_text() == whole


@pytest.mark.parametrize(
    ("path", "kind"), [("runs", "file"), ("runs/tiny", "file"), ("runs", "link"), ("runs/tiny/checkpoints", "file")]
)
def test_a_file_in_the_place_of_a_folder_is_named_with_a_cure(folder: Path, path: str, kind: str) -> None:
    write_tagger(folder)
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    if "checkpoints" in path:
        begin_run(load_tagger(folder, *SMALL_TAGGER))
    if kind == "link":
        (folder / path).symlink_to("nowhere")
    else:
        (folder / path).touch()
    result = seqpipe("train", "tiny.yaml", *SMALL_TAGGER)
    assert result.code == 2
    fault = {"file": "a file, where a folder is needed", "link": "a link to a folder that does not exist"}[kind]
    assert f"{path}: is {fault}; move it, or work in another folder" in result.err


@pytest.mark.parametrize("path", [".", "runs", "runs/tiny"])
def test_a_folder_that_may_not_be_written_into_is_named_with_a_cure(path: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="seqpipe-"))  # everybody may go in, as into no folder of pytest's
    try:
        with contextlib.chdir(folder):
            config = load_tagger(folder, *SMALL_TAGGER)
            (folder / path).mkdir(parents=True, exist_ok=True)
            for closed in (folder / path, *(folder / path).parents[: len(Path(path).parts)]):
                closed.chmod(0o555)
            if os.geteuid() == 0:
                os.seteuid(65534)
            try:
                with pytest.raises(EnvError, match=r"runs.*: cannot be written: Permission denied; make its folder"):
                    begin_run(config)
            finally:
                os.seteuid(os.getuid())
    finally:
        for closed in (folder, *folder.rglob("*")):
            closed.chmod(0o755)
        shutil.rmtree(folder)
