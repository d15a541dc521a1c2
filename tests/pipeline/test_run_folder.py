"""A run goes on, does nothing, or says what changed; it never overwrites what it did not make."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import Install
from factory import LEAN, Watched, begin_run, seqpipe, tagging, tiny, train_run, write_conll

from seqpipe.config.loader import Config, load
from seqpipe.console import Console
from seqpipe.errors import DataError, EnvError, UsageError
from seqpipe.pipeline.full_run import run_all, run_seeds
from seqpipe.pipeline.run_folder import differences, fingerprint, load_trained, open_run
from seqpipe.pipeline.training import resolve_device
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.data_forms import data_form
from seqpipe.training.datasets import read
from seqpipe.training.fit import fit_artifacts
from seqpipe.version import VERSION

QUIET = Console(-1)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    torch.set_num_threads(1)
    with contextlib.chdir(tmp_path):
        yield tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a finished run, in which the tests stand."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("finished")
    with contextlib.chdir(folder):
        run_all(tiny(folder, *LEAN, "train.epochs=6"), QUIET, "cpu")
        yield folder


def again(folder: Path, *overrides: str) -> Config:
    return load(folder / "tiny.yaml", [*LEAN, "train.epochs=6", *overrides])


def changed(folder: Path, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        begin_run(again(folder, *overrides))
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_run_holds_everything_that_was_made(finished: Path) -> None:
    folder = finished / "runs" / "tiny"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        ".lock",
        "run.json",
        "pipeline.yaml",
        "learned.json",
        "tokenizer.json",
        "checkpoints",
        "training.json",
        "facts.json",
        "answers.jsonl",
        "metrics.json",
        "bundle",
    }
    assert set(json.loads((folder / "metrics.json").read_text())) == {"test"}
    assert {path.name for path in (folder / "bundle").iterdir()} == {
        "bundle.json",
        "model.onnx",
        "tokenizer.json",
        "README.md",
    }


def test_an_unchanged_finished_run_does_nothing_and_says_so(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (finished / "runs").rglob("*") if path.name != ".lock"}

    before = written()
    result = run_all(again(finished), Console(), "cpu")
    assert written() == before
    assert result.scores == json.loads((finished / "runs/tiny/metrics.json").read_text())
    assert "nothing changed: nothing to do (--fresh trains again)" in capsys.readouterr().err


def test_the_saved_yaml_is_every_setting_and_reads_as_the_same_pipeline(finished: Path) -> None:
    text = (finished / "runs/tiny/pipeline.yaml").read_text()
    assert "direction: both" in text
    assert "../../train.conll" in text
    opened = open_run(finished / "runs/tiny", QUIET).config
    config = again(finished)
    assert fingerprint(opened) == fingerprint(config)
    assert (opened.data.train, opened.data.dev, opened.data.tests) == (
        config.data.train,
        config.data.dev,
        config.data.tests,
    )


def test_the_saved_yaml_says_which_versions_made_it_and_another_one_installed_is_told(
    here: Path, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "from seqpipe.plugin import hookimpl\nfrom factory import toy_encoders\n\n@hookimpl\ndef register_encoders():\n"
    )
    install("seqpipe-toy", code + "    return {'sound': toy_encoders()['sound'][1]}\n", version="1.0")
    config = load(tagging(here), ["encoder=[sound]", "plugins.allow=[seqpipe-toy]"])
    run = begin_run(config)
    assert load(run.folder / "pipeline.yaml").plugins.versions == {
        "data.reader": f"seqpipe-nlp {VERSION}",
        "tokenizer": f"seqpipe-nlp {VERSION}",
        "embedding.0": f"seqpipe-nlp {VERSION}",
        "embedding.1": f"seqpipe-nlp {VERSION}",
        "encoder": "seqpipe-toy 1.0",
        "head": f"seqpipe-nlp {VERSION}",
    }
    open_run(run.folder, Console())
    assert capsys.readouterr().err == ""
    (info,) = (here / "site").glob("seqpipe_toy-*.dist-info")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: seqpipe-toy\nVersion: 1.1\n")
    open_run(run.folder, Console())
    told = "encoder was made with seqpipe-toy 1.0; here it is seqpipe-toy 1.1"
    assert capsys.readouterr().err == f"note: {run.folder / 'pipeline.yaml'}: {told}\n"
    run.checkpoints.mkdir()
    (run.checkpoints / "last.ckpt").touch()
    with pytest.raises(UsageError, match=r"components.encoder sound: seqpipe-toy 1.0 -> seqpipe-toy 1.1"):
        begin_run(load(tagging(here), ["encoder=sound"]))


def test_the_saved_yaml_can_be_read_from_anywhere(finished: Path, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        assert open_run(finished / "runs/tiny", QUIET).config.data.train == finished / "train.conll"


def test_a_changed_yaml_is_refused_naming_every_change(finished: Path) -> None:
    told = changed(finished, "train.epochs=7", "encoder.hidden=9", "train.seed=5")
    assert "runs/tiny was made from other inputs:" in told
    assert "\n  encoder.hidden: 6 -> 9" in told
    assert "\n  train.epochs: 6 -> 7" in told
    assert "\n  train.seed: 1 -> 5" in told
    assert "--fresh" in told
    assert told.count("->") == 3


def test_changed_data_is_refused_naming_the_file(finished: Path) -> None:
    kept = {name: (finished / name).read_bytes() for name in ("train.conll", "test.conll")}
    try:
        for role in ("train", "test"):
            write_conll(finished / f"{role}.conll", 20, 99)
            assert f"\n  data.{role}: the file's content changed" in changed(finished)
            (finished / f"{role}.conll").write_bytes(kept[f"{role}.conll"])
    finally:
        for name, data in kept.items():
            (finished / name).write_bytes(data)
    begin_run(again(finished))


def test_a_run_that_never_trained_begins_anew_once_its_data_is_corrected(here: Path) -> None:
    path = tagging(here)
    good = (here / "test.conll").read_text()
    (here / "test.conll").write_text(good + "\nRome B-RIVER\n")
    with pytest.raises(DataError, match="RIVER"):
        train_run(load(path))
    (here / "test.conll").write_text(good)
    with (here / "train.conll").open("a") as file:
        file.write("\nAnew O\n")
    train_run(load(path))
    assert "anew" in Artifacts.load(here / "runs/tiny").vocabulary


def test_moved_data_is_the_same_data(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "moved.conll").write_bytes((finished / "train.conll").read_bytes())
    begin_run(again(finished, f"data.train={tmp_path / 'moved.conll'}"))


def test_a_test_set_named_train_hides_nothing(here: Path) -> None:
    config = tiny(here, "data.test={train: test.conll, dev: dev.conll}")
    before = fingerprint(config)
    write_conll(here / "train.conll", 20, 99)
    assert differences(before, fingerprint(config)) == ["data.train: the file's content changed"]


def test_every_file_that_belongs_to_the_data_counts(here: Path) -> None:
    for name, line in (("a.in", "x"), ("a.out", "O"), ("a.label", "y")):
        (here / name).write_text(f"{line}\n" * 3)
    reader = "data.reader={use: parallel, fields: {words: '*.in', tags: '*.out', topic: '*.label'}}"
    config = tiny(here, reader, "data.train=a.in", "data.dev=null", "data.test=null", "train.patience=null")
    before = fingerprint(config)
    assert len(before["data"]["train"]) == 3
    (here / "a.label").write_text("z\n" * 3)
    assert differences(before, fingerprint(config)) == ["data.train.2: the file's content changed"]
    (here / "a.label").unlink()
    with pytest.raises(DataError, match=r"there is no file .*a\.label beside it for `topic`"):
        fingerprint(config)


def test_a_file_that_an_option_names_counts_by_its_content_and_may_move(here: Path) -> None:
    vectors = here / "some.vec"
    vectors.write_text("Ada 1 2\nOslo 3 4\n")
    config = tiny(here, "embedding=[{use: vectors, path: some.vec}]")
    before = fingerprint(config)
    (here / "other").mkdir()
    (here / "other" / "some.vec").write_bytes(vectors.read_bytes())
    moved = tiny(here, "embedding=[{use: vectors, path: other/some.vec}]")
    assert differences(before, fingerprint(moved)) == []
    vectors.write_text("Ada 1 2\nOslo 3 5\n")
    assert differences(before, fingerprint(config)) == ["embedding.path: the file's content changed"]


def test_fresh_moves_the_old_run_aside(here: Path) -> None:
    config = tiny(here, *LEAN)
    for number in range(3):
        run = begin_run(config, fresh=number > 0)
        (run.folder / f"mark-{number}").touch()
    assert sorted(path.name for path in (here / "runs").iterdir()) == ["tiny", "tiny.1", "tiny.2"]
    assert (here / "runs/tiny.1/mark-0").exists()
    assert (here / "runs/tiny.2/mark-1").exists()
    assert (here / "runs/tiny/mark-2").exists()


def test_no_old_run_is_moved_for_an_unknown_mode_of_features(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_run(tiny(here))
    monkeypatch.setenv("SEQPIPE_FEATURES", "maped")
    with pytest.raises(UsageError, match="SEQPIPE_FEATURES=maped: must be auto, memory or mapped"):
        begin_run(tiny(here), fresh=True)
    assert [path.name for path in (here / "runs").iterdir()] == ["tiny"]


def test_a_folder_that_is_no_run_is_left_alone(here: Path) -> None:
    (here / "runs/tiny").mkdir(parents=True)
    begin_run(tiny(here))  # an empty one is taken
    (here / "runs/tiny/run.json").unlink()
    (here / "runs/tiny/thesis.tex").write_text("precious")
    with pytest.raises(UsageError, match="exists and is not a run; give the YAML another name: or move the folder"):
        begin_run(tiny(here), fresh=True)
    with pytest.raises(UsageError, match=r"not a run \(no run.json\)"):
        open_run(here / "runs/tiny", QUIET)


def test_a_run_that_was_killed_as_it_began_begins(here: Path) -> None:
    (here / "runs/tiny").mkdir(parents=True)
    (here / "runs/tiny/pipeline.yaml").write_text("name: ti")
    (here / "runs/tiny/.run.json.x.part").write_text("{")
    run = begin_run(tiny(here))
    assert sorted(path.name for path in run.folder.iterdir()) == [".lock", "pipeline.yaml", "run.json"]
    open_run(run.folder, QUIET)


def test_an_untrained_run_has_nothing_to_show(here: Path) -> None:
    class StopError(Exception): ...

    def stop(count: int) -> None:
        raise StopError

    config = tiny(here, *LEAN)
    run = begin_run(config)
    with pytest.raises(UsageError, match="not trained yet; run `seqpipe train` or `seqpipe run` first"):
        load_trained(run)
    with pytest.raises(StopError):
        train_run(load(config.file, [*LEAN, "train.checkpoint_steps=1", "name=stopped"]), Watched(stop))
    with pytest.raises(UsageError, match="stopped before the first epoch ended"):
        load_trained(open_run(here / "runs/stopped", QUIET))


def test_parity_is_shown_on_test_else_dev_else_train(here: Path) -> None:
    def sizes(*overrides: str) -> int:
        return len(data_form(tiny(here, *overrides)).compared_records(here))

    assert [sizes(), sizes("data.test=null"), sizes("data.test=null", "data.dev=null")] == [16, 12, 36]


def test_seeds_are_runs_of_their_own_with_mean_and_deviation(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tagging(here)
    more = [*LEAN, "train.epochs=4"]
    load_with, console = lambda chosen: load(file, [*more, *chosen]), Console()
    summary = run_seeds(load_with, lambda config: run_all(config, console, "cpu"), "tiny", 2, console)
    one, two = summary["test"].values
    assert (summary["test"].metric, summary["test"].mean) == ("f1", pytest.approx((one + two) / 2))
    assert summary["test"].deviation == pytest.approx(abs(one - two) / 2**0.5)
    assert sorted(path.name for path in (here / "runs").iterdir()) == ["tiny-seed1", "tiny-seed2"]
    said = capsys.readouterr().err
    assert "== seed 2 of 2" in said
    assert "± " in said


def test_a_device_that_is_not_there_is_an_error() -> None:
    assert resolve_device("cpu") == "cpu"
    with pytest.raises(UsageError, match="must be auto, cpu, cuda or cuda:N"):
        resolve_device("gpu")
    if not torch.cuda.is_available():
        assert resolve_device("auto") == "cpu"
        with pytest.raises(EnvError, match="has no CUDA device; see `seqpipe doctor`"):
            resolve_device("cuda:0")


@pytest.mark.parametrize("name", ["dev", "test"])
def test_a_label_that_training_never_saw_stops_before_training_with_its_place(here: Path, name: str) -> None:
    config = tiny(here, *LEAN, "train.epochs=1")
    (here / f"{name}.conll").write_text("Ada\tB-PER\n\nAda\tB-ORG\n")
    told = rf"the {name} set has 1 label that training never saw: 'ORG' \(.*{name}\.conll:3\)\n.*unseen_labels: miss"
    with pytest.raises(DataError, match=told):
        train_run(config)
    assert not (here / "runs/tiny/checkpoints").exists()


def test_a_label_that_training_never_saw_may_count_as_missed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny(here, *LEAN, "train.epochs=1", "data.unseen_labels=miss")
    (here / "dev.conll").write_text("Ada\tB-ORG\n")
    train_run(config, Console())
    told = capsys.readouterr().err
    assert "the dev set has 1 label that training never saw: 'ORG' (" in told
    assert "dev.conll:1); such a label counts as missed" in told


def test_of_many_labels_that_training_never_saw_three_are_listed(here: Path) -> None:
    config = tiny(here, *LEAN, "train.epochs=1")
    (here / "dev.conll").write_text("".join(f"Ada\tB-{label}\n\n" for label in ("per", "A", "B", "C", "D", "PER")))
    with pytest.raises(DataError) as told:
        train_run(config)
    dev = here / "dev.conll"
    examples = f"'per' ({dev}:1, training has 'PER'); 'A' ({dev}:3); 'B' ({dev}:5); and 2 more"
    assert str(told.value).startswith(f"the dev set has 5 labels that training never saw: {examples}\n")


def test_a_damaged_run_file_is_an_error_that_names_the_cure(tmp_path: Path) -> None:
    (tmp_path / "learned.json").write_text('{"field": ')
    with pytest.raises(DataError, match=r"learned\.json: damaged: .*--fresh"):
        Artifacts.load(tmp_path)


def test_what_was_made_of_other_data_is_not_kept_by_a_run_that_never_trained(here: Path) -> None:
    config = tiny(here, *LEAN)
    folder = begin_run(config).folder
    Artifacts.save(fit_artifacts(config, read(config.data.reader, config.data.train)), folder)
    (folder / "tokens").mkdir()
    (folder / "tokens/train.bin").write_bytes(b"of other texts")
    begin_run(config)
    assert (folder / "tokens/train.bin").exists()  # nothing changed
    write_conll(here / "train.conll", 20, 99)
    begin_run(config)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "pipeline.yaml", "run.json"]
    assert json.loads((folder / "run.json").read_text())["fingerprint"] == fingerprint(config)


def test_killed_as_it_begins_anew_it_begins_anew_again(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(here, *LEAN)
    folder = begin_run(config).folder
    Artifacts.save(fit_artifacts(config, read(config.data.reader, config.data.train)), folder)

    class KilledError(Exception): ...

    def killed(path: Path, data: str) -> None:
        raise KilledError

    other = load(config.file, [*LEAN, "tokenizer=chars"])
    monkeypatch.setattr("seqpipe.files.write", killed)
    with pytest.raises(KilledError):
        begin_run(other)
    monkeypatch.undo()
    begin_run(other)
    assert load(folder / "pipeline.yaml").tokenizers[0].use == "chars"


def test_the_rows_of_all_epochs_are_there_after_a_kill_between_checkpoint_and_rows(here: Path) -> None:
    config = tiny(here, *LEAN, "train.epochs=2")
    train_run(config)
    path = here / "runs/tiny/checkpoints/metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole.splitlines(keepends=True)[0])  # as it was when the last checkpoint was written
    train_run(config)
    assert path.read_text() == whole


@pytest.mark.parametrize(
    ("way", "what"), [("runs", "file"), ("runs/tiny", "file"), ("runs", "link"), ("runs/tiny/checkpoints", "file")]
)
def test_something_else_where_a_folder_goes_is_named_with_a_cure(here: Path, way: str, what: str) -> None:
    tagging(here)
    (here / way).parent.mkdir(parents=True, exist_ok=True)
    if "checkpoints" in way:
        begin_run(tiny(here, *LEAN))
    if what == "link":
        (here / way).symlink_to("nowhere")
    else:
        (here / way).touch()
    result = seqpipe("train", "tiny.yaml", *LEAN)
    assert result.code == 2
    kind = {"file": "a file, where a folder is needed", "link": "a link to a folder that does not exist"}[what]
    assert f"{way}: is {kind}; move it, or work in another folder" in result.err


@pytest.mark.parametrize("way", [".", "runs", "runs/tiny"])
def test_a_folder_that_may_not_be_written_into_is_named_with_a_cure(way: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="seqpipe-"))  # everybody may go in, as into no folder of pytest's
    try:
        with contextlib.chdir(folder):
            config = tiny(folder, *LEAN)
            if way != ".":
                (folder / way).mkdir(parents=True)
            for path in (folder / way, *(folder / way).parents[: len(Path(way).parts)]):
                path.chmod(0o555)
            if os.geteuid() == 0:
                os.seteuid(65534)
            try:
                with pytest.raises(EnvError, match=r"runs.*: cannot be written: Permission denied; make its folder"):
                    begin_run(config)
            finally:
                os.seteuid(os.getuid())
    finally:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        shutil.rmtree(folder)
