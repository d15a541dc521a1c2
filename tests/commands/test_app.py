"""The commands do what they say, with one score from training to deployment, and end with the promised exit codes."""

import contextlib
import errno
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import termios
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from tiny_pipelines import (
    SMALL_TAGGER,
    CommandResult,
    command_line,
    environ,
    fail_with,
    run_process,
    seqpipe,
    succeed,
    write_classifier,
    write_jsonl,
    write_tagger,
)

from seqpipe.commands.app import app
from seqpipe.commands.plugins import app as plugins_app
from seqpipe.console import Console

CRF = ("embedding={use: lookup, dim: 8}", "train.epochs=8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `seqpipe run tiny.yaml` has run."""
    folder = tmp_path_factory.mktemp("cli")
    write_tagger(folder)
    done = succeed("run", "tiny.yaml", *CRF, "--json", folder=folder)
    (folder / "run.json").write_text(done.out)
    (folder / "run.err").write_text(done.err)
    return folder


# One score everywhere


def test_run_prints_its_progress_and_has_its_scores_as_json(folder: Path) -> None:
    result, printed = json.loads((folder / "run.json").read_text()), (folder / "run.err").read_text()
    training, test = result["training"], result["scores"]["test"]
    assert result["run"] == "runs/tiny"
    assert test["f1"] > 0.6
    assert training == json.loads((folder / "runs/tiny/training.json").read_text())
    assert all(part in printed for part in ("training tiny: 36 examples", "epoch   8/8", "exporting to ONNX"))
    ending = printed[printed.index("answers of the bundle to test records:") :]
    examples = re.split(r"\n  (?! )", ending.partition("\n\n")[0])[1:]
    assert len(examples) == 4
    assert all(re.search(r"\n    (as expected|missed: |wrong: )", example) for example in examples)
    best = f"of epoch {training['best_epoch']} (step"
    assert f"the best dev f1 is {100 * training['dev']:.2f}, {best}" in ending
    lines = ending.splitlines()
    last = lines[next(i for i, line in enumerate(lines) if line.startswith("ended")) :]
    interval = r"\(95 % interval [\d.]+ to [\d.]+\); never a span: 0.00"
    assert re.fullmatch(rf"test f1 {100 * test['f1']:.2f} {interval}", last[1])
    assert re.search(r"onnxruntime = PyTorch in [\d,]+ decisions on 16 records and \d+ generated", last[-2])
    assert last[-1] == "next: seqpipe serve runs/tiny/bundle"
    again = seqpipe("run", "tiny.yaml", *CRF, folder=folder)
    assert again.err.splitlines()[-len(last) :] == last  # a finished run repeats its scores
    card = (folder / "runs/tiny/bundle/README.md").read_text()
    assert f"| dev | f1 | {100 * training['dev']:.2f} |  |\n| test | f1 | {100 * test['f1']:.2f} | " in card
    assert best in card


def test_the_metric_that_chose_the_weights_leads_the_scores(tmp_path: Path) -> None:
    write_tagger(tmp_path)
    done = seqpipe("run", "tiny.yaml", "train.metric=recall", SMALL_TAGGER[0], "-q", folder=tmp_path)
    (line,) = done.err.splitlines()
    assert re.match(r"test recall [\d.]+ \(95 % interval [^)]+\); never a span: 0.00, f1 [\d.]+ \(95 %", line)
    card = (tmp_path / "runs/tiny/bundle/README.md").read_text()
    assert card.index("| dev | recall |") < card.index("| test | recall |") < card.index("| test | f1 |")
    again = ("train", "runs/tiny/pipeline.yaml", "train.epochs=3", "--seed", "9")
    changed, longer = (seqpipe(*again, *options, folder=tmp_path) for options in ([], ["--fresh"]))
    assert (changed.code, "train.seed: 1 -> 9" in changed.err) == (2, True)
    assert (longer.code, "epoch   3/3" in longer.err) == (0, True), longer.err
    assert "the old run is now runs/tiny.1" in longer.err
    assert "next: seqpipe evaluate runs/tiny" in longer.err
    assert (tmp_path / "runs/tiny.1/bundle").exists()


def test_evaluate_scores_a_file_a_group_raw_text_and_lists_errors(folder: Path) -> None:
    def evaluated(target: str, *options: str) -> dict[str, Any]:
        done = seqpipe("evaluate", target, *options, "--errors", "wrong.jsonl", "--json", folder=folder)
        assert "the mistakes are listed in wrong.jsonl" in done.err
        scores: dict[str, Any] = json.loads(done.out)
        return scores

    of_file = evaluated("runs/tiny", "--data", "dev.conll")
    assert list(of_file) == ["dev.conll"]
    assert of_file == evaluated("runs/tiny/bundle", "--data", "dev.conll")
    assert set(evaluated("runs/tiny/bundle", "--by", "topic")["test"]) == {"", "topic=a", "topic=b"}
    raw = evaluated("runs/tiny/bundle", "--raw")
    assert raw == {"test": raw["test"], "test (raw)": raw["test"]}  # the toy data splits as the tokenizer does


def test_a_run_under_several_seeds_has_mean_and_deviation(tmp_path: Path) -> None:
    write_tagger(tmp_path)
    done = succeed("run", "tiny.yaml", *SMALL_TAGGER, "train.epochs=7", "--seeds", "2", "--json", folder=tmp_path)
    summary = json.loads(done.out)["test"]
    values = summary["values"]
    runs = [tmp_path / f"runs/tiny-seed{seed}" for seed in (1, 2)]
    assert values == [json.loads((run / "metrics.json").read_text())["test"]["f1"] for run in runs]
    assert values[0] != values[1]
    deviation = pytest.approx(stdev(values))
    assert summary == {"metric": "f1", "values": values, "mean": mean(values), "deviation": deviation}
    assert all(part in done.err for part in ("== seed 2 of 2", "± "))
    assert sorted(os.listdir(tmp_path / "runs")) == ["tiny-seed1", "tiny-seed2"]
    assert (runs[1] / "bundle/model.onnx").exists()
    changed = seqpipe("train", "tiny.yaml", *SMALL_TAGGER, "name=tiny-seed2", "train.epochs=7", folder=tmp_path)
    assert "train.seed" in changed.err


# On a terminal


def on_terminal(*arguments: str, folder: Path, typed: bytes = b"", stdout: bool = False, **environment: str) -> str:
    """The text that a command writes to a terminal of 80 columns, its standard output only if `stdout` is set."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    output = theirs if stdout else subprocess.DEVNULL
    streams: Any = {"stdin": theirs, "stdout": output, "stderr": theirs}
    child = subprocess.Popen(command_line(*arguments), cwd=folder, env=environ(**environment), **streams)
    os.close(theirs)
    os.write(ours, typed)
    written = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while block := os.read(ours, 4096):
            written += block
    child.wait()
    os.close(ours)
    return written.decode()


def test_an_error_on_a_terminal_is_red_and_wraps_at_words(folder: Path) -> None:
    arguments = ("check", "tiny.yaml", "--static", "train.epoch=3", "encoder.hiden=9")
    coloured = on_terminal(*arguments, folder=folder, NO_COLOR="", COLUMNS="80")
    plain = on_terminal(*arguments, folder=folder, NO_COLOR="1", COLUMNS="80")
    assert coloured.replace("\x1b[31m", "").replace("\x1b[0m", "") == plain
    assert (coloured.count("\x1b[31m"), "\x1b" in plain) == (1, False)
    assert max(map(len, plain.splitlines())) <= 80
    assert "did you mean 'hidden'?" in " ".join(plain.split())
    assert "\x1b" not in seqpipe(*arguments, folder=folder).err


def test_scores_on_a_terminal_are_bold(folder: Path) -> None:
    text = on_terminal("run", "tiny.yaml", *CRF, folder=folder, NO_COLOR="")
    assert re.search(r"\x1b\[1mtest f1 [\d.]+ ", text)
    assert "\x1b[31m" not in text


def test_an_error_in_the_command_line_is_below_its_usage_and_red_on_a_terminal(folder: Path) -> None:
    for arguments, fault in (
        (("run", "tiny.yaml", "--epoch", "3"), "Error: No such option: --epoch"),
        (("rum", "tiny.yaml"), "Error: No such command 'rum'."),
        (("bench", "x", "--seconds", "none"), "Error: Invalid value for '--seconds'"),
        (("check",), "Error: Missing argument 'FILE'."),
    ):
        plain = seqpipe(*arguments, folder=folder)
        assert (plain.code, plain.err.startswith("Usage: seqpipe"), f"\n{fault}" in plain.err) == (2, True, True)
    coloured = on_terminal("check", folder=folder, NO_COLOR="")
    assert re.match(r"Usage: seqpipe[^\x1b]*\x1b\[31mError: Missing argument 'FILE'\.[^\x1b]*\x1b\[0m\s*$", coloured)
    assert "\x1b" not in on_terminal("check", folder=folder, NO_COLOR="1") + plain.err


def test_findings_of_doctor_are_green_yellow_or_red(folder: Path) -> None:
    coloured = on_terminal("doctor", folder=folder, stdout=True, NO_COLOR="")
    assert "\x1b[32mok   \x1b[0m onnxruntime: " in coloured
    assert re.findall(r"^note ", coloured, re.MULTILINE) == []
    plain = on_terminal("doctor", folder=folder, stdout=True, NO_COLOR="1")
    assert "\x1b" not in plain + seqpipe("doctor").out
    assert re.sub(r"\x1b\[\d+m", "", coloured).splitlines()[0] == plain.splitlines()[0]


def test_progress_has_the_remaining_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    with Console().progress("training", 400) as tick:
        for step in range(101, 201):  # a run that was resumed in its middle
            clock += 1
            tick(step, "epoch 2/4")
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "  training: 200 of 400, 0:03:22 left; epoch 2/4"
    assert len(lines) == 3  # of a hundred steps, at tenths of all
    with Console().progress("exporting", None) as tick:
        clock += 60
        tick(7)
    assert capsys.readouterr().err == "  exporting: 7\n"


# Predict


def predict(folder: Path, *arguments: str | Path, stdin: str | bytes = "") -> CommandResult:
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    return seqpipe("predict", folder / "runs/tiny/bundle", "--device", "cpu", *arguments, stdin=data)


def test_predict_prompts_on_a_terminal_and_nowhere_else(folder: Path) -> None:
    text = on_terminal("predict", "runs/tiny/bundle", "--device", "cpu", folder=folder, typed=b"Ada left\n\x04")
    assert "one text a line; Ctrl-D ends" in text
    assert "> " in text
    assert predict(folder, stdin="Ada left\n").err == ""


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "message"),
    [
        (["--option", "n_best"], "a\n", 2, "must be KEY=VALUE"),
        (["--option", "nbest=2"], "a\n", 2, "no decode option 'nbest'; did you mean 'n_best'?"),
        (["--option", f"n_best={2**70}"], "a\n", 2, f"--option n_best={2**70}: this number is too large"),
        (["--beams", "2"], "a\n", 2, "no decode option 'beams' (there is: n_best)"),
        (["--documents", "--n-best", "2"], "a\n", 2, "n_best: a document has a single answer"),
        (["-i", "gone.txt"], "", 3, "gone.txt: there is no such file"),
    ],
)
def test_predict_refuses_what_it_cannot_do(folder: Path, arguments: Any, stdin: Any, code: int, message: str) -> None:
    done = predict(folder, *arguments, stdin=stdin)
    assert (done.code, message in done.err, "Traceback" in done.err) == (code, True, False), done.err


def test_documents_are_split_into_sentences_with_offsets_into_the_document(folder: Path) -> None:
    text = "nobody came . Ada left . Cho flew to Lima ."
    spans = json.loads(predict(folder, "--documents", stdin=text + "\n").out)
    assert [text[span["start"] : span["end"]] for span in spans] == ["Ada", "Cho", "Lima"]


def test_a_pipe_that_closes_ends_predict_quietly(folder: Path) -> None:
    call = " ".join(command_line("predict", "runs/tiny/bundle", "--device", "cpu"))
    line = f"yes Ada left | {call} | head -n 1"
    done = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, env=environ(), timeout=120)
    assert json.loads(done.stdout)[0]["word"] == "Ada"
    assert "Traceback" not in done.stderr


# Errors and exit codes


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("check bad.yaml", 2, "bad.yaml:4:1: tokeniser: no such key; did you mean 'tokenizer'?"),
        ("train tiny.yaml data.train=bad.conll name=bad", 3, "bad.conll:2: "),
        ("verify damaged", 6, "damaged: its sha256 is not the one"),
        ("evaluate runs/tiny --device cuda:7", 7, "has no CUDA device"),
        ("evaluate gone", 2, "name a folder that `seqpipe train` or `seqpipe run` wrote"),
        ("export gone", 2, "name a folder that `seqpipe train` or `seqpipe run` wrote"),
        ("predict gone", 6, "no such folder; name a folder that"),
    ],
)
def test_a_command_ends_with_the_promised_exit_code(folder: Path, arguments: str, code: int, message: str) -> None:
    (folder / "bad.yaml").write_text("name: x\ndata:\n  reader: conll\ntokeniser: words\nhead: crf\n")
    (folder / "bad.conll").write_text("Ada\tB-PER\nleft\n")
    shutil.copytree(folder / "runs/tiny/bundle", folder / "damaged", dirs_exist_ok=True)
    with (folder / "damaged/tokenizer.json").open("r+b") as file:
        file.write(b"?")  # in place of a brace
    done = seqpipe(*arguments.split(), folder=folder)
    assert (done.code, message in done.err, "Traceback" in done.err) == (code, True, False), done.err


def test_a_process_shows_a_traceback_with_debug_alone(tmp_path: Path) -> None:
    plain = run_process("verify", "gone", folder=tmp_path)
    assert (plain.code, "Traceback" in plain.err) == (6, False)
    assert "Traceback" in run_process("--debug", "verify", "gone", folder=tmp_path).err


@pytest.mark.parametrize(
    ("option", "override"),
    [
        (["--epochs", "3"], "train.epochs=3"),
        (["--epochs=3"], "train.epochs=3"),
        (["--batch-size", "8"], "train.batch_size=8"),
        (["--lr", "0.1"], "train.optimizer.lr=0.1"),
        (["--train.patience", "2"], "train.patience=2"),
        (["-o", "out"], "name=out"),
        (["--streaming"], "export.streaming=VALUE"),
        (["--learning-rate", "0.1"], "train.optimizer.lr=0.1"),
        (["--num_train_epochs", "3"], "train.epochs=3"),
        (["-e", "3"], "train.epochs=3"),
        (["--hidden-size=100"], "encoder.hidden=100"),
        (["--train", "x.csv"], "data.train=x.csv"),
        (["--data", "x.csv"], "data.train=x.csv"),
    ],
)
def test_an_option_that_is_a_key_is_answered_with_the_override(folder: Path, option: list[str], override: str) -> None:
    for name in ("run", "check", "train"):
        done = seqpipe(name, "tiny.yaml", *option, folder=folder)
        assert (done.code, done.err.rstrip().endswith(f": {override}")) == (2, True), done.err
    done = seqpipe("run", "tiny.yaml", *option, "--json", folder=folder)
    assert json.loads(done.out)["error"]["message"].endswith(override)


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("run", "tiny.yaml", "--gpu"), "no option --gpu; use --device cuda"),
        (("run", "tiny.yaml", "epochs=3"), "epochs: no such key; did you mean 'train.epochs'?"),
        (("check", "tiny.yaml", "seed=3", "precision=int8"), "seed: no such key; did you mean 'train.seed'?"),
        (("check", "tiny.yaml", "opset=20"), "opset: no such key; did you mean 'export.opset'?"),
        (("check", "tiny.yaml", "dev=x"), "dev: no such key; did you mean 'data.dev'?"),
        (("check", "tiny.yaml", "encode=x"), "encode: no such key; did you mean 'encoder'?"),
        (("predict", "runs/tiny/bundle", "tiny.yaml"), "tiny.yaml: is a file, not a text; name it with --input"),
        (("predict", "runs/tiny/bundle", "--epochs", "3"), "No such option"),
        (("evaluate", "runs/tiny", "--pairs=a.jsonl"), "no option --pairs; use seqpipe minimal-pairs TARGET FILE"),
        (("evaluate", "runs/tiny", "--swap", "a.tsv"), "no option --swap; use seqpipe robustness TARGET"),
        (("evaluate", "runs/tiny", "--merge", "answers"), "no option --merge; use seqpipe merge BUNDLE FOLDER"),
        (("evaluate", "runs/tiny", "--shard", "1/2"), "--shard writes its answers to a folder: name both"),
        (("evaluate", "runs/tiny", "--shard", "1/2", "-o", "a", "--by", "x"), "give --by and --errors to seqpipe"),
        (("report", "runs/tiny", "--merge", "answers"), "No such option"),
    ],
)
def test_a_usual_mistake_is_answered_with_its_fix(folder: Path, arguments: tuple[str, ...], fix: str) -> None:
    fail_with(2, fix, *arguments, folder=folder)


def test_a_missing_embedding_is_one_problem(folder: Path) -> None:
    for head in ("crf", "label", "tags"):
        overrides = ("embedding=null", "encoder=null", f"head={head}")
        done = seqpipe("check", "--static", "tiny.yaml", *overrides, folder=folder)
        assert (done.code, "1 problem; nothing was run" in done.err, "embedding: lookup" in done.err) == (2, True, True)


def test_a_learning_rate_far_above_the_usual_has_a_warning(folder: Path) -> None:
    usual = seqpipe("check", "--static", "tiny.yaml", "train.optimizer={use: sgd, lr: 20}", folder=folder)
    assert (usual.code, "warning" in usual.err) == (0, False)
    for key in ("train.optimizer.lr", "head.lr"):
        done = seqpipe("check", "--static", "tiny.yaml", f"{key}=1e9", folder=folder)
        assert (done.code, f"{key}: 1e+09 is over 1000 times" in done.err, "warning: " in done.err) == (0, True, True)


def test_a_loss_that_rises_is_warned_of_before_the_export_and_at_the_end(tmp_path: Path) -> None:
    write_classifier(tmp_path)
    rate = "train.optimizer={use: sgd, lr: 30}"
    done = seqpipe("run", "moods.yaml", "head={use: label}", rate, "train.epochs=1", folder=tmp_path)
    warning = r"\n  warning: the training loss rose .* divide by ten: train.optimizer.lr: 30"
    assert re.search(warning, done.err), done.err
    assert "train longer" not in done.err
    before, _, after = done.err.partition("exporting to ONNX")
    assert ("the training loss rose" in before, "\nwarning: the training loss rose" in after) == (True, True)
    assert re.search(r"\n    expected: \w+\n", after.partition("answers of the bundle ")[2])


def test_init_takes_its_file_as_argument_or_as_option(folder: Path) -> None:
    for name, file in (("one", ["test.conll"]), ("two", ["--data", "test.conll"])):
        done = seqpipe("init", *file, "-o", f"{name}.yaml", folder=folder)
        assert (done.code, (folder / f"{name}.yaml").exists()) == (0, True), done.err
    assert (folder / "one.yaml").read_text().replace("name: one", "name: two") == (folder / "two.yaml").read_text()
    for wrong in ([], ["test.conll", "--data", "test.conll"]):
        fail_with(2, "seqpipe init train.csv", "init", *wrong, folder=folder)


# JSON


def test_every_problem_of_a_yaml_is_reported_at_once_and_nothing_is_run(tmp_path: Path) -> None:
    write_tagger(tmp_path)
    arguments = ("run", "tiny.yaml", "train.epoch=3", "encoder=lsmt", "head.schema=BIOES")
    plain, done = (seqpipe(*arguments, *options, folder=tmp_path) for options in ([], ["--json"]))
    assert (done.code, done.err, plain.out) == (plain.code, plain.err, "") == (2, plain.err, "")
    assert all(f"did you mean '{name}'?" in plain.err for name in ("epochs", "scheme", "lstm"))
    assert "3 problems; nothing was run" in plain.err
    assert not (tmp_path / "runs").exists()
    error = json.loads(done.out)["error"]
    assert (error["kind"], error["exit_code"], error["message"] in done.err) == ("ConfigError", 2, True)
    assert [problem["key"] for problem in error["problems"]] == ["encoder.use", "head.schema", "train.epoch"]


WITH_JSON = [  # with the exit code, and for an error its kind and message
    (["run", "tiny.yaml", *CRF], 0, "", ""),
    (["run", "tiny.yaml", "name=\udcff"], 2, "ConfigError", "is not UTF-8"),
    (["run", "tiny.yaml", "--seeds", "2", "--folds", "2"], 2, "UsageError", "--seeds with --folds: the deviation"),
    (["run", "tiny.yaml", "--more", "2", "--data-add", "x"], 2, "UsageError", "--more with --data-add: each is"),
    (["run", "tiny.yaml", "--final"], 2, "UsageError", "--final trains on all data after --folds"),
    (["run", "tiny.yaml", "--folds", "1"], 2, "UsageError", "'--folds'"),
    (["check", "tiny.yaml", "--static"], 0, "", ""),
    (["check", "unread.yaml"], 2, "ConfigError", "unread.yaml:1:"),
    (["check", "tiny.yaml", "--explain", "encoder=lsmt"], 2, "ConfigError", "did you mean 'lstm'"),
    (["check", "tiny.yaml", "--explain", "data.dev=unread.yaml"], 3, "DataError", "unread.yaml"),
    (["evaluate", "runs/tiny/bundle", "--by", "colour"], 3, "DataError", "no field 'colour' to split by"),
    (["evaluate", "runs/tiny/bundle", "--beams", "many"], 2, "UsageError", "'--beams'"),
    (["compare", "runs/tiny", "runs/tiny/bundle", "--no-speed"], 0, "", ""),
    (["runs"], 0, "", ""),
    (["verify", "gone"], 6, "BundleError", "no such folder"),
    (["convert", "gone", "-o", "bundle"], 2, "UsageError", "no such folder"),
    (["init", "gone.csv"], 3, "DataError", "gone.csv: there is no such file"),
    (["bench", "gone"], 6, "BundleError", "no such folder"),
    (["explain", "runs/tiny/bundle", "Ada left"], 0, "", ""),
    (["explain", "runs/tiny/bundle", "Ada left", "--method", "attention"], 2, "UsageError", "no attention weights"),
    (["robustness", "runs/tiny/bundle", "--perturb", "typos,case"], 0, "", ""),
    (["robustness", "runs/tiny/bundle", "--perturb", "typo"], 2, "UsageError", "did you mean 'typos'?"),
    (["minimal-pairs", "runs/tiny/bundle", "gone.jsonl"], 3, "DataError", "gone.jsonl: there is no such file"),
    (["merge", "runs/tiny/bundle", "gone"], 3, "DataError", "gone: has no shards"),
    (["doctor"], 0, "", ""),
    (["doctor", "--require", "tpu"], 2, "UsageError", "'tpu' is not one of 'cuda'"),
    (["plugins", "check", "gone"], 2, "UsageError", "no installed distribution 'gone'"),
    (["chekc"], 2, "UsageError", "No such command 'chekc'"),
]


@pytest.mark.parametrize(("arguments", "code", "kind", "message"), WITH_JSON)
def test_json_output_is_one_document(folder: Path, arguments: list[str], code: int, kind: str, message: str) -> None:
    (folder / "unread.yaml").write_text("name: [a\n")
    done = seqpipe(*arguments, "--json", folder=folder)
    assert done.code == code, done.err
    document = json.loads(done.out)
    assert document
    error = document["error"] if code else {"kind": "", "exit_code": 0, "message": ""}
    assert (error["kind"], error["exit_code"], message in error["message"]) == (kind, code, True), error
    assert ("error" in document) == bool(code)


def test_every_command_with_json_is_among_these() -> None:
    commands = [("", app), ("plugins ", plugins_app)]
    with_json = {
        prefix + (command.name or command.callback.__name__.replace("_", "-"))
        for prefix, group in commands
        for command in group.registered_commands
        if command.callback and "as_json" in command.callback.__annotations__
    }
    assert with_json == {" ".join(arguments[: 1 + (arguments[0] == "plugins")]) for arguments, *_ in WITH_JSON[:-1]}


SPACE = "wrong.jsonl: No space left on device; free some space, or write to another path"
ODD = "standard output or error: odd; seqpipe --debug shows where it happened"


@pytest.mark.parametrize(
    ("error", "message"),
    [(OSError(errno.ENOSPC, "No space left on device", "wrong.jsonl"), SPACE), (OSError("odd"), ODD)],
)
def test_system_errors_are_json(error: OSError, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr("seqpipe.evaluation.scores.write", write)
    done = seqpipe("evaluate", "runs/tiny/bundle", "--errors", "wrong.jsonl", "--json", folder=folder)
    assert json.loads(done.out) == {"error": {"kind": "OSError", "exit_code": 7, "message": message}}
    assert (done.code, message in done.err) == (7, True)


def test_a_text_that_reads_json_asks_for_no_json(folder: Path) -> None:
    done = seqpipe("explain", "gone", "--", "--json", folder=folder)
    assert (done.code, done.out) == (6, "")


# Check


def test_check_explains_which_stage_provides_and_uses_each_name(folder: Path) -> None:
    explain = ("check", "tiny.yaml", "--static", "--explain")
    done = succeed(*explain, folder=folder)
    assert "tiny.yaml: ok" in done.err
    names = json.loads(seqpipe(*explain, "--json", folder=folder).out)["names"]
    assert {"ids", "mask", "x", "dim"} <= {name["name"] for name in names}
    assert all(name["name"] in done.out and name["from"] in done.out for name in names)
    assert "encoder.forward" in done.out
    assert "head.loss" in done.out


def test_check_builds_and_exports_and_its_last_line_repeats_the_overrides_for_a_shell(folder: Path) -> None:
    (folder / "my own").mkdir()
    write_tagger(folder / "my own")
    pattern = r"tokenizer.pattern=\w+|[^\w\s]"
    done = succeed("check", "my own/tiny.yaml", *SMALL_TAGGER, "--set", pattern, "--json", folder=folder)
    assert json.loads(done.out)["decisions"] == 12
    line = done.err.rstrip().rpartition("\nnext: ")[2]
    assert shlex.split(line) == ["seqpipe", "run", "my own/tiny.yaml", *SMALL_TAGGER, pattern]
    wrong = write_jsonl(folder / "no.jsonl", [{"text": "a"}])
    assert seqpipe("check", "tiny.yaml", f"data.train={wrong}", "data.reader=jsonl", folder=folder).code == 3
