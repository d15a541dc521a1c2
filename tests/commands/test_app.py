"""The commands do what they say, in one number from training to deployment, and end with the exit code they promise."""

from __future__ import annotations

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
from typing import Any

import pytest
import torch
from factory import LEAN, Done, command, environ, labelling, process, seqpipe, tagging, write_jsonl

from seqpipe import Pipeline
from seqpipe.commands.app import app
from seqpipe.commands.plugins import app as plugins_app
from seqpipe.console import Console, Progress

CRF = ("embedding={use: lookup, dim: 8}", "train.epochs=8")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `seqpipe run tiny.yaml` has run."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("cli")
    tagging(folder)
    done = seqpipe("run", "tiny.yaml", *CRF, "--json", folder=folder)
    assert done.code == 0, done.err
    (folder / "run.json").write_text(done.out)
    (folder / "run.err").write_text(done.err)
    return folder


def answers(done: Done) -> list[Any]:
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


# One number everywhere


def test_run_tells_what_it_does_and_gives_its_scores_as_json(here: Path) -> None:
    result, said = json.loads((here / "run.json").read_text()), (here / "run.err").read_text()
    assert result["run"] == "runs/tiny"
    assert result["scores"]["test"]["f1"] > 0.6
    for part in (
        "training tiny: 36 examples",
        "epoch   8/8",
        "exporting to ONNX",
        "answers of the bundle:",
        "test f1 ",
    ):
        assert part in said
    assert said.rstrip().endswith("next: seqpipe predict runs/tiny/bundle")
    training = result["training"]
    assert training == json.loads((here / "runs/tiny/training.json").read_text())
    ending = said[said.index("answers of the bundle:") :]
    assert f"the best dev f1 is {100 * training['dev']:.2f}, of epoch {training['best_epoch']} (step" in ending
    test = result["scores"]["test"]
    assert f"\ndev f1 {100 * training['dev']:.2f}\ntest f1 {100 * test['f1']:.2f}\n" in ending
    last = said.splitlines()[-5:]
    assert [line.split()[0] for line in last] == ["ended", "dev", "test", "runs/tiny/bundle:", "next:"]
    assert re.search(r"onnxruntime = PyTorch in [\d,]+ decisions on 16 records and \d+ generated", last[3])
    again = seqpipe("run", "tiny.yaml", *CRF, folder=here)
    assert again.err.splitlines()[-5:] == last  # a finished run repeats its scores
    card = (here / "runs/tiny/bundle/README.md").read_text()
    assert f"| dev | f1 | {100 * training['dev']:.2f} |\n| test | f1 |" in card
    assert f"of epoch {training['best_epoch']} (step" in card


def test_the_shown_answers_stand_beside_what_was_expected(here: Path, tmp_path: Path) -> None:
    shown = (here / "run.err").read_text().partition("answers of the bundle:")[2].partition("\n\n")[0]
    examples = re.split(r"\n  (?! )", shown)[1:]
    assert len(examples) == 4
    assert all(re.search(r"\n    (as expected|missed: |wrong: )", example) for example in examples)
    labelling(tmp_path)
    done = seqpipe(
        "run", "moods.yaml", "head={use: label}", "train.epochs=1", "train.optimizer.lr=1e-5", folder=tmp_path
    )
    assert done.code == 0, done.err
    assert re.search(r"\n    expected: \w+\n", done.err.partition("answers of the bundle:")[2])


def test_the_metric_that_chose_the_weights_leads_the_scores_and_the_command_to_train_longer_works(
    tmp_path: Path,
) -> None:
    tagging(tmp_path)
    lines = ("train.metric=recall", "train.epochs=3", "embedding={use: lookup, dim: 8}")
    done = seqpipe("run", "tiny.yaml", *lines, "-q", folder=tmp_path)
    assert [line.split()[:2] for line in done.err.splitlines()] == [["dev", "recall"], ["test", "recall"]]
    assert ", f1 " in done.err.splitlines()[1]
    card = (tmp_path / "runs/tiny/bundle/README.md").read_text()
    assert card.index("| dev | recall |") < card.index("| test | recall |") < card.index("| test | f1 |")
    longer = seqpipe("train", "runs/tiny/pipeline.yaml", "train.epochs=4", "--fresh", folder=tmp_path)
    assert longer.code == 0, longer.err
    assert "epoch   4/4" in longer.err
    assert (tmp_path / "runs/tiny.1/bundle").exists()


def test_run_and_bundle_and_the_training_have_the_same_score(here: Path) -> None:
    trained = json.loads((here / "run.json").read_text())["scores"]
    of_run = json.loads(seqpipe("evaluate", "runs/tiny", "--json", folder=here).out)
    of_bundle = json.loads(seqpipe("evaluate", "runs/tiny/bundle", "--json", folder=here).out)
    assert of_run == of_bundle == trained
    assert json.loads((here / "runs/tiny/bundle/bundle.json").read_text())["metrics"] == trained


def test_evaluate_takes_another_file_and_a_bundle_that_stands_alone_needs_one(here: Path, tmp_path: Path) -> None:
    shutil.copytree(here / "runs/tiny/bundle", tmp_path / "alone")
    assert seqpipe("evaluate", tmp_path / "alone").code == 2
    alone = seqpipe("evaluate", tmp_path / "alone", "--data", here / "dev.conll", "--json")
    run = seqpipe("evaluate", here / "runs/tiny", "--data", here / "dev.conll", "--json")
    assert json.loads(alone.out) == json.loads(run.out)
    assert list(json.loads(run.out)) == ["dev.conll"]


def test_evaluate_splits_by_a_field_and_scores_raw_text_and_lists_errors(here: Path) -> None:
    by = json.loads(seqpipe("evaluate", "runs/tiny/bundle", "--by", "topic", "--json", folder=here).out)["test"]
    assert set(by) == {"", "topic=a", "topic=b"}
    raw = json.loads(seqpipe("evaluate", "runs/tiny/bundle", "--raw", "--json", folder=here).out)
    assert list(raw) == ["test", "test (raw)"]
    assert raw["test"] == raw["test (raw)"]  # the toy data splits as the tokenizer does
    done = seqpipe("evaluate", "runs/tiny/bundle", "--errors", "wrong.jsonl", folder=here)
    assert "the mistakes are listed in wrong.jsonl" in done.err
    wrong = [json.loads(line) for line in (here / "wrong.jsonl").read_text().splitlines()]
    added = {"confidence", "where", "answer", "missed", "wrong"}
    assert all(set(line) == added | {"text", "words", "tags", "topic"} for line in wrong)
    beams = seqpipe("evaluate", "runs/tiny/bundle", "--beams", "5", folder=here)
    assert (beams.code, "no decode option 'beams' (there is: n_best)" in beams.err) == (2, True), beams.err
    missing = seqpipe("evaluate", "runs/tiny/bundle", "--by", "colour", folder=here)
    assert (missing.code, "no field 'colour' to split by" in missing.err) == (3, True)


def test_verify_repeats_the_golden_examples(here: Path) -> None:
    done = seqpipe("verify", "runs/tiny/bundle", "--json", folder=here)
    assert (done.code, json.loads(done.out)["golden"] > 4) == (0, True)
    assert "golden examples answered the same on cpu" in done.err


def test_export_writes_the_bundle_again_elsewhere(here: Path, tmp_path: Path) -> None:
    assert seqpipe("export", "runs/tiny", "-o", tmp_path / "there", "-q", folder=here).code == 0
    assert seqpipe("verify", tmp_path / "there").code == 0
    one, two = ((path / "model.onnx").read_bytes() for path in (here / "runs/tiny/bundle", tmp_path / "there"))
    assert one == two


def test_a_run_under_several_seeds_gives_mean_and_deviation(tmp_path: Path) -> None:
    tagging(tmp_path)
    done = seqpipe("run", "tiny.yaml", *LEAN, "train.epochs=2", "--seeds", "2", "--json", "-q", folder=tmp_path)
    assert done.code == 0, done.err
    summary = json.loads(done.out)["test"]
    assert len(summary["values"]) == 2
    assert set(summary) == {"metric", "mean", "deviation", "values"}
    assert (tmp_path / "runs/tiny-seed2/bundle/model.onnx").exists()
    assert (
        "train.seed" in seqpipe("train", "tiny.yaml", *LEAN, "name=tiny-seed2", "train.epochs=2", folder=tmp_path).err
    )


def test_a_missing_embedding_is_one_problem(tmp_path: Path) -> None:
    file = tagging(tmp_path)
    for head in ("crf", "label", "tags"):
        done = seqpipe("check", "--static", file, "embedding=null", "encoder=null", f"head={head}", folder=tmp_path)
        assert (done.code, "1 problem; nothing was run" in done.err, "embedding: lookup" in done.err) == (2, True, True)


def test_a_learning_rate_far_above_the_usual_gives_a_warning(tmp_path: Path) -> None:
    file = tagging(tmp_path)
    quiet = seqpipe("check", "--static", file, "train.optimizer={use: sgd, lr: 20}", folder=tmp_path)
    assert (quiet.code, "warning" in quiet.err) == (0, False)
    for key in ("train.optimizer.lr", "head.lr"):
        done = seqpipe("check", "--static", file, f"{key}=1e9", folder=tmp_path)
        assert (done.code, f"{key}: 1e+09 is over 1000 times" in done.err, "warning: " in done.err) == (0, True, True)


def test_the_progress_of_a_training_is_that_of_the_whole_run(tmp_path: Path) -> None:
    file, reports = tagging(tmp_path), list[Progress]()
    Pipeline(file, [*LEAN, "train.epochs=3"]).train(device="cpu", progress=reports.append, runs=tmp_path / "runs")
    steps = [report for report in reports if (report.kind, report.text) == ("step", "training") and report.done]
    assert [report.done for report in steps] == [*range(1, steps[-1].done + 1)]
    assert steps[-1].done == steps[-1].total
    assert re.fullmatch(r"epoch 1/3, loss [\d.]+, [\d,]+ tokens/s", steps[0].note)
    assert re.fullmatch(r"epoch 3/3, loss [\d.]+, best f1 [\d.]+, [\d,]+ tokens/s", steps[-1].note)


# On a terminal


def on_terminal(
    *arguments: str, folder: Path, typed: bytes = b"", answers_too: bool = False, **environment: str
) -> str:
    """What a command writes to a terminal of 80 columns while something is typed; its answers may go elsewhere."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    child = subprocess.Popen(
        command(*arguments),
        cwd=folder,
        stdin=theirs,
        stdout=theirs if answers_too else subprocess.DEVNULL,
        stderr=theirs,
        env=environ(**environment),
    )
    os.close(theirs)
    os.write(ours, typed)
    written = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while block := os.read(ours, 4096):
            written += block
    child.wait()
    os.close(ours)
    return written.decode()


def test_an_error_on_a_terminal_is_red_and_wraps_at_words(here: Path) -> None:
    arguments = ("check", "tiny.yaml", "--static", "train.epoch=3", "encoder.hiden=9")
    coloured = on_terminal(*arguments, folder=here, NO_COLOR="", COLUMNS="80")
    plain = on_terminal(*arguments, folder=here, NO_COLOR="1", COLUMNS="80")
    assert coloured.replace("\x1b[31m", "").replace("\x1b[0m", "") == plain
    assert (coloured.count("\x1b[31m"), "\x1b" in plain) == (1, False)
    assert max(map(len, plain.splitlines())) <= 80
    assert "did you mean 'hidden'?" in " ".join(plain.split())
    assert "\x1b" not in process(*arguments, folder=here).err


def test_scores_and_warnings_on_a_terminal_are_coloured(here: Path) -> None:
    text = on_terminal("run", "tiny.yaml", *CRF, folder=here, NO_COLOR="")
    assert re.search(r"\x1b\[1mtest f1 [\d.]+\x1b\[0m", text)
    assert "\x1b[31m" not in text


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("run", "tiny.yaml", "--epoch", "3"), "Error: No such option: --epoch"),
        (("rum", "tiny.yaml"), "Error: No such command 'rum'."),
        (("check",), "Error: Missing argument 'FILE'."),
        (("bench", "x", "--seconds", "none"), "Error: Invalid value for '--seconds'"),
    ],
)
def test_an_error_in_the_command_line_is_red_below_its_usage(
    arguments: tuple[str, ...], fault: str, here: Path
) -> None:
    coloured = on_terminal(*arguments, folder=here, NO_COLOR="")
    assert coloured.startswith("Usage: seqpipe")
    assert f"\x1b[31m{fault}" in coloured
    assert coloured.count("\x1b[") == 2
    plain = process(*arguments, folder=here)
    assert (plain.code, "\x1b" in plain.err) == (2, False)
    assert f"\n{fault}" in plain.err
    assert "\x1b" not in on_terminal(*arguments, folder=here, NO_COLOR="1")


def test_findings_of_doctor_are_green_yellow_or_red(here: Path) -> None:
    coloured = on_terminal("doctor", folder=here, answers_too=True, NO_COLOR="")
    assert "\x1b[32mok   \x1b[0m onnxruntime: " in coloured
    assert re.findall(r"^note ", coloured, re.MULTILINE) == []
    plain = on_terminal("doctor", folder=here, answers_too=True, NO_COLOR="1")
    assert "\x1b" not in plain + process("doctor", folder=here).out
    assert re.sub(r"\x1b\[\d+m", "", coloured).splitlines()[0] == plain.splitlines()[0]


def test_lines_of_progress_say_how_long_the_whole_run_still_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    with Console().progress("training", 400) as tick:
        for done in range(101, 201):  # a run that was resumed in its middle
            clock += 1
            tick(done, "epoch 2/4")
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "  training: 190 of 400, 0:03:32 left; epoch 2/4"
    assert len(lines) == 3
    with Console().progress("exporting", None) as tick:
        clock += 60
        tick(7)
    assert capsys.readouterr().err == "  exporting: 7\n"


def test_predict_prompts_on_a_terminal_and_nowhere_else(here: Path) -> None:
    text = on_terminal("predict", "runs/tiny/bundle", "--device", "cpu", folder=here, typed=b"Ada left\n\x04")
    assert "one text a line; Ctrl-D ends" in text
    assert "> " in text
    assert predict(here, stdin="Ada left\n").err == ""


# Predict


def predict(here: Path, *arguments: str | Path, stdin: str | bytes = "") -> Done:
    data = stdin if isinstance(stdin, bytes) else stdin.encode("utf-8", "surrogatepass")
    return seqpipe("predict", here / "runs/tiny/bundle", "--device", "cpu", *arguments, stdin=data)


def test_text_in_gives_a_line_of_json_a_line_in_order(here: Path) -> None:
    lines = ["Ada flew to Rome .", "", "nobody came .", "in Oslo , Cho met Eli .", "   ", "x\0y"]
    found = answers(predict(here, stdin="\n".join(lines) + "\n"))
    assert len(found) == len(lines)
    assert [found[i] for i in (1, 2, 4)] == [[], [], []]
    for line, answer in zip(lines, found, strict=True):
        assert all(line[span["start"] : span["end"]] == span["word"] for span in answer)
        assert all(set(span) == {"entity_group", "score", "word", "start", "end"} for span in answer)
    assert [span["word"] for span in found[0]] == ["Ada", "Rome"]


def test_jsonl_in_keeps_the_record_and_adds_the_answer(here: Path, tmp_path: Path) -> None:
    records = [
        {"id": 7, "text": "Ada flew to Rome ."},
        {"words": ["Ada", "left"], "text": "Ada left"},
        {"text": "\ud800 Ada left"},
        {"text": ""},
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + '\n"Ada left"\n')
    found = answers(predict(here, "-i", path))
    assert [{key: line[key] for key in line if key != "answer"} for line in found] == [*records, {"text": "Ada left"}]
    assert found[1]["answer"][0]["word"] == "Ada"
    assert found[2]["answer"][0]["start"] == 2
    assert found[3]["answer"] == []


def test_conll_in_gives_conll_with_the_tags(here: Path) -> None:
    given = "Dee\nDee\nFox\nleft\n\nnobody\ncame\n.\n"
    done = predict(here, "--format", "conll", stdin=given)
    assert done.code == 0, done.err
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [row[0] for row in rows] == [*given.rstrip("\n").split("\n"), ""]
    assert {row[1] for row in rows if len(row) == 2} <= {"O", "B-PER", "I-PER", "B-LOC", "I-LOC"}
    assert rows[0][1] == "B-PER"
    with_tags = predict(here, "-i", here / "test.conll")
    assert with_tags.code == 0, with_tags.err
    bare = [line.split("\t")[0] for line in (here / "test.conll").read_text().splitlines() if not line.startswith("# ")]
    assert [line.split("\t")[0] for line in with_tags.out.rstrip("\n").splitlines()] == bare


def test_n_best_gives_alternatives_best_first(here: Path) -> None:
    (found,) = answers(predict(here, "--n-best", "3", stdin="Ada flew to Rome .\n"))
    assert len(found) == 3
    assert [a["score"] for a in found] == sorted((a["score"] for a in found), reverse=True)
    (usual,) = answers(predict(here, stdin="Ada flew to Rome .\n"))
    assert [span["word"] for span in found[0]["spans"]] == [span["word"] for span in usual]
    same = predict(here, "--option", "n_best=3", stdin="Ada flew to Rome .\n")
    assert answers(same) == [found]


def test_documents_are_split_into_sentences_with_offsets_into_the_document(here: Path) -> None:
    text = "nobody came . Ada left . Cho flew to Lima ."
    (found,) = answers(predict(here, "--documents", stdin=text + "\n"))
    assert all(text[span["start"] : span["end"]] == span["word"] for span in found)
    assert [span["word"] for span in found] == ["Ada", "Cho", "Lima"]


def test_an_output_file_is_written_whole_or_not_at_all(here: Path, tmp_path: Path) -> None:
    done = predict(here, "-o", tmp_path / "out.jsonl", stdin="Ada left\nBob Ray left\n")
    assert (done.code, done.out) == (0, "")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    bad = predict(here, "-o", tmp_path / "out.jsonl", "--format", "jsonl", stdin='{"text": "Ada left"}\nnot json\n')
    assert (bad.code, "standard input:2: not JSON" in bad.err) == (3, True)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    assert os.listdir(tmp_path) == ["out.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "told"),
    [
        (["--format", "xml"], "a\n", 2, "must be one of text, jsonl, conll"),
        (["--option", "n_best"], "a\n", 2, "must be KEY=VALUE"),
        (["--option", "nbest=2"], "a\n", 2, "no decode option 'nbest'; did you mean 'n_best'?"),
        (["--n-best", "0"], "a\n", 2, "n_best: 0 is not between 1 and 100"),
        (["--beams", "2"], "a\n", 2, "no decode option 'beams'"),
        (["--format", "conll", "--n-best", "2"], "a\n", 2, "one answer a sentence"),
        (["--documents", "--n-best", "2"], "a\n", 2, "documents have no n_best"),
        (["-i", "gone.txt"], "", 3, "gone.txt: there is no such file"),
        ([], b"fine\n\xff\xfe\n", 3, "standard input:2: byte 1 is not UTF-8"),
        (["--format", "jsonl"], '{"txt": "a"}\n', 3, "standard input:1: no field 'text'; the record has: txt; rename"),
        (["--format", "jsonl"], "[1]\n", 3, "must be an object with `text` or `words`"),
    ],
)
def test_predict_refuses_what_it_cannot_do(here: Path, arguments: list[str], stdin: Any, code: int, told: str) -> None:
    done = predict(here, *arguments, stdin=stdin)
    assert (done.code, told in done.err, "Traceback" in done.err) == (code, True, False), done.err


# Exit codes


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["check", "bad.yaml"], 2, "bad.yaml:4:1: tokeniser: no such key; did you mean 'tokenizer'?"),
        (["train", "tiny.yaml", "data.train=bad.conll", "name=bad"], 3, "bad.conll:2: "),
        (["verify", "damaged"], 6, "damaged: its sha256 is not the one"),
        (["evaluate", "runs/tiny", "--device", "cuda:7"], 7, "has no CUDA device"),
    ],
    ids=["config", "data", "bundle", "environment"],
)
def test_a_process_ends_with_the_promised_exit_code(here: Path, arguments: list[str], code: int, told: str) -> None:
    (here / "bad.yaml").write_text("name: x\ndata:\n  reader: conll\ntokeniser: words\nhead: crf\n")
    (here / "bad.conll").write_text("Ada\tB-PER\nleft\n")
    if not (here / "damaged").exists():
        shutil.copytree(here / "runs/tiny/bundle", here / "damaged")
        with (here / "damaged/tokenizer.json").open("r+b") as file:
            file.write(b"?")  # in place of a brace
    done = process(*arguments, folder=here, CUDA_VISIBLE_DEVICES="")
    assert (done.code, told in done.err, "Traceback" in done.err) == (code, True, False), done.err


def test_every_problem_of_a_yaml_is_told_at_once_and_nothing_is_run(tmp_path: Path) -> None:
    tagging(tmp_path)
    done = seqpipe("run", "tiny.yaml", "train.epoch=3", "head.schema=BIOES", "encoder=lsmt", folder=tmp_path)
    assert done.code == 2
    assert all(
        hint in done.err for hint in ("did you mean 'epochs'?", "did you mean 'scheme'?", "did you mean 'lstm'?")
    )
    assert "3 problems; nothing was run" in done.err
    assert not (tmp_path / "runs").exists()


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
def test_an_option_that_is_a_key_of_the_yaml_is_answered_with_the_override(
    here: Path, option: list[str], override: str
) -> None:
    for name in ("run", "check", "train"):
        done = seqpipe(name, "tiny.yaml", *option, folder=here)
        assert (done.code, done.err.rstrip().endswith(f": {override}")) == (2, True), done.err
    done = seqpipe("run", "tiny.yaml", *option, "--json", folder=here)
    assert json.loads(done.out)["error"]["message"].endswith(override)
    assert "No such option" in seqpipe("predict", "runs/tiny/bundle", "--epochs", "3", folder=here).err


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("run", "tiny.yaml", "--gpu"), "no option --gpu; use --device cuda"),
        (("run", "tiny.yaml", "epochs=3"), "epochs: no such key; did you mean 'train.epochs'?"),
        (("check", "tiny.yaml", "seed=3", "precision=int8"), "seed: no such key; did you mean 'train.seed'?"),
        (("check", "tiny.yaml", "opset=20"), "opset: no such key; did you mean 'export.opset'?"),
        (("check", "tiny.yaml", "dev=x"), "dev: no such key; did you mean 'data.dev'?"),
        (("check", "tiny.yaml", "encode=x"), "encode: no such key; did you mean 'encoder'?"),
        (("predict", "runs/tiny/bundle", "Ada"), "echo 'a text' | seqpipe predict BUNDLE"),
    ],
)
def test_a_usual_mistake_is_answered_with_its_fix(here: Path, arguments: tuple[str, ...], fix: str) -> None:
    done = seqpipe(*arguments, folder=here)
    assert (done.code, fix in done.err) == (2, True), done.err


def test_a_loss_that_rises_is_warned_of_before_the_export_and_at_the_end(tmp_path: Path) -> None:
    labelling(tmp_path)
    rate = "train.optimizer={use: sgd, lr: 30}"
    done = seqpipe("run", "moods.yaml", "head={use: label}", rate, "train.epochs=1", folder=tmp_path)
    assert re.search(r"\n  warning: the training loss rose .* divide by ten: train.optimizer.lr: 30", done.err), (
        done.err
    )
    assert "train longer" not in done.err
    before, _, after = done.err.partition("exporting to ONNX")
    assert ("the training loss rose" in before, "\nwarning: the training loss rose" in after) == (True, True)


def test_init_takes_its_file_as_argument_or_as_option(here: Path) -> None:
    for name, file in (("one", ["test.conll"]), ("two", ["--data", "test.conll"])):
        done = seqpipe("init", *file, "-o", f"{name}.yaml", folder=here)
        assert (done.code, (here / f"{name}.yaml").exists()) == (0, True), done.err
    assert (here / "one.yaml").read_text().replace("name: one", "name: two") == (here / "two.yaml").read_text()
    for wrong in ([], ["test.conll", "--data", "test.conll"]):
        done = seqpipe("init", *wrong, folder=here)
        assert (done.code, "seqpipe init train.csv" in done.err) == (2, True)


def test_with_json_an_error_is_one_json_object_and_the_exit_code_stays(here: Path) -> None:
    plain = seqpipe("check", "tiny.yaml", "train.epoch=3", "encoder=lsmt", folder=here)
    done = seqpipe("check", "tiny.yaml", "train.epoch=3", "encoder=lsmt", "--json", folder=here)
    assert (done.code, done.err, plain.out) == (plain.code, plain.err, "") == (2, plain.err, "")
    error = json.loads(done.out)["error"]
    assert (error["kind"], error["exit_code"]) == ("ConfigError", 2)
    assert [problem["key"] for problem in error["problems"]] == ["encoder.use", "train.epoch"]
    assert error["message"] in done.err


WITH_JSON = [  # with the exit code, and for an error its kind and what is told
    (["run", "tiny.yaml", *CRF], 0, "", ""),
    (["run", "tiny.yaml", "name=\udcff"], 2, "ConfigError", "is not UTF-8"),
    (["run", "tiny.yaml", "--seeds", "2", "--folds", "2"], 2, "UsageError", "--seeds with --folds: the deviation"),
    (["run", "tiny.yaml", "--more", "2", "--data-add", "x"], 2, "UsageError", "--more with --data-add: each is"),
    (["run", "tiny.yaml", "--final"], 2, "UsageError", "--final trains on all data after --folds"),
    (["run", "tiny.yaml", "--folds", "1"], 2, "UsageError", "'--folds'"),
    (["run", "tiny.yaml", "--more", "1", "name=gone"], 2, "UsageError", "runs/gone is not trained yet"),
    (["run", "tiny.yaml", "--data-add", "x", "name=gone"], 2, "ConfigError", "data.add.0: no such file"),
    (["run", "tiny.yaml", "--sed", "1"], 2, "UsageError", "No such option: --sed"),
    (["check", "tiny.yaml", *CRF], 0, "", ""),
    (["check", "tiny.yaml", "--static"], 0, "", ""),
    (["check", "tiny.yaml", "--static", "--explain"], 0, "", ""),
    (["check"], 2, "UsageError", "Missing argument 'FILE'"),
    (["check", "gone.yaml"], 2, "ConfigError", "no such file"),
    (["check", "unread.yaml"], 2, "ConfigError", "unread.yaml:1:"),
    (["check", "tiny.yaml", "--explain", "encoder=lsmt"], 2, "ConfigError", "did you mean 'lstm'"),
    (["check", "tiny.yaml", "--explain", "data.dev=unread.yaml"], 3, "DataError", "unread.yaml"),
    (["evaluate", "runs/tiny"], 0, "", ""),
    (["evaluate", "runs/tiny/bundle", "--raw", "--by", "topic", "--errors", "wrong.jsonl"], 0, "", ""),
    (["evaluate", "runs/tiny/bundle", "--by", "colour"], 3, "DataError", "no field 'colour'"),
    (["evaluate", "runs/tiny/bundle", "--beams", "many"], 2, "UsageError", "'--beams'"),
    (["compare", "runs/tiny", "runs/tiny"], 2, "UsageError", "two or more different"),
    (["compare", "runs/tiny", "runs/tiny/bundle", "--no-speed"], 0, "", ""),
    (["runs"], 0, "", ""),
    (["verify", "runs/tiny/bundle"], 0, "", ""),
    (["convert", "gone", "-o", "made"], 2, "UsageError", "no such folder"),
    (["init", "gone.csv"], 3, "DataError", "gone.csv: there is no such file"),
    (["verify", "gone"], 6, "BundleError", "no such folder"),
    (["bench", "gone"], 6, "BundleError", "no such folder"),
    (["explain", "runs/tiny/bundle", "Ada left"], 0, "", ""),
    (["explain", "runs/tiny/bundle", "Ada left", "--method", "attention"], 2, "UsageError", "no attention weights"),
    (["evaluate", "runs/tiny/bundle", "--perturb", "typos,case"], 0, "", ""),
    (["evaluate", "runs/tiny/bundle", "--perturb", "typo"], 2, "UsageError", "did you mean 'typos'?"),
    (["doctor"], 0, "", ""),
    (["doctor", "--require", "tpu"], 2, "UsageError", "must be cuda"),
    (["plugins", "check", "gone"], 2, "UsageError", "no installed distribution 'gone'"),
    (["chekc"], 2, "UsageError", "No such command 'chekc'"),
]


@pytest.mark.parametrize(("arguments", "code", "kind", "told"), WITH_JSON)
def test_with_json_standard_output_is_one_json_document(
    here: Path, arguments: list[str], code: int, kind: str, told: str
) -> None:
    (here / "unread.yaml").write_text("name: [a\n")
    done = seqpipe(*arguments, "--json", folder=here)
    assert done.code == code, done.err
    document = json.loads(done.out)
    if code:
        error = document["error"]
        assert (error["kind"], error["exit_code"], told in error["message"]) == (kind, code, True), error
    else:
        assert document
        assert "error" not in document


def test_every_command_that_gives_json_is_among_these() -> None:
    commands = [("", app), ("plugins ", plugins_app)]
    with_json = {
        prefix + command.callback.__name__
        for prefix, group in commands
        for command in group.registered_commands
        if command.callback and "as_json" in command.callback.__annotations__
    }
    assert with_json == {" ".join(arguments[: 1 + (arguments[0] == "plugins")]) for arguments, *_ in WITH_JSON[:-1]}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "wrong.jsonl"),
            "wrong.jsonl: No space left on device; free some space, or write to another path",
        ),
        (OSError("odd"), "standard output or error: odd; seqpipe --debug shows where it happened"),
    ],
)
def test_with_json_an_error_of_the_system_is_one_json_object_too(
    error: OSError, message: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr("seqpipe.runtime.evaluate.write", write)
    done = seqpipe("evaluate", "runs/tiny/bundle", "--errors", "wrong.jsonl", "--json", folder=here)
    assert json.loads(done.out) == {"error": {"kind": "OSError", "exit_code": 7, "message": message}}
    assert (done.code, message in done.err) == (7, True)


def test_a_text_that_reads_json_asks_for_no_json(here: Path) -> None:
    done = seqpipe("explain", "gone", "--", "--json", folder=here)
    assert (done.code, done.out) == (6, "")


def test_a_changed_yaml_ends_with_2_and_fresh_moves_the_run_aside(tmp_path: Path) -> None:
    tagging(tmp_path)
    assert seqpipe("train", "tiny.yaml", *LEAN, "-q", folder=tmp_path).code == 0
    other = seqpipe("train", "tiny.yaml", *LEAN, "--seed", "9", folder=tmp_path)
    assert (other.code, "train.seed: 1 -> 9" in other.err) == (2, True)
    fresh = seqpipe("train", "tiny.yaml", *LEAN, "--seed", "9", "--fresh", folder=tmp_path)
    assert (fresh.code, "the old run is now runs/tiny.1" in fresh.err) == (0, True)
    assert "next: seqpipe evaluate runs/tiny" in fresh.err
    again = seqpipe("train", "tiny.yaml", *LEAN, "--seed", "9", "--resume", folder=tmp_path)
    assert again.code == 0


def test_a_traceback_is_shown_with_debug_alone(tmp_path: Path) -> None:
    assert "Traceback" not in process("verify", "gone", folder=tmp_path).err
    assert "Traceback" in process("--debug", "verify", "gone", folder=tmp_path).err


def test_a_run_that_is_none_is_told_with_what_makes_one(tmp_path: Path) -> None:
    for verb in ("evaluate", "export"):
        done = seqpipe(verb, "gone", folder=tmp_path)
        assert (done.code, "name a folder that `seqpipe train` or `seqpipe run` wrote" in done.err) == (2, True)
    done = seqpipe("predict", "gone", folder=tmp_path)
    assert (done.code, "no such folder; name a folder that" in done.err) == (6, True)


def test_a_pipe_that_closes_ends_predict_quietly(here: Path) -> None:
    call = " ".join(command("predict", "runs/tiny/bundle", "--device", "cpu"))
    done = subprocess.run(
        f"yes Ada left | {call} | head -n 1",
        shell=True,
        cwd=here,
        capture_output=True,
        text=True,
        env=environ(),
        timeout=120,
    )
    assert json.loads(done.stdout)[0]["word"] == "Ada"
    assert "Traceback" not in done.stderr


# Check


def test_check_explains_who_provides_and_who_uses_each_name(here: Path) -> None:
    done = seqpipe("check", "tiny.yaml", "--static", "--explain", folder=here)
    assert (done.code, "tiny.yaml: ok" in done.err) == (0, True)
    as_json = seqpipe("check", "tiny.yaml", "--static", "--explain", "--json", folder=here)
    names = json.loads(as_json.out)["names"]
    assert {"ids", "mask", "x", "dim"} <= {name["name"] for name in names}
    assert all(name["name"] in done.out and name["from"] in done.out for name in names)
    assert "encoder.forward" in done.out
    assert "head.loss" in done.out


def test_the_line_that_check_ends_with_repeats_the_overrides_for_a_shell(here: Path) -> None:
    (here / "my own").mkdir()
    tagging(here / "my own")
    pattern = r"tokenizer.pattern=\w+|[^\w\s]"
    done = seqpipe("check", "my own/tiny.yaml", *LEAN, "--set", pattern, folder=here)
    assert done.code == 0, done.err
    _, _, line = done.err.rstrip().rpartition("\nnext: ")
    assert shlex.split(line) == ["seqpipe", "run", "my own/tiny.yaml", *LEAN, pattern]


def test_check_builds_and_exports_in_the_small(here: Path) -> None:
    done = seqpipe("check", "tiny.yaml", *LEAN, "--json", folder=here)
    assert done.code == 0, done.err
    assert json.loads(done.out)["decisions"] == 12
    assert done.err.rstrip().endswith(f"next: seqpipe run tiny.yaml '{LEAN[0]}' head=tags")
    wrong = write_jsonl(here / "no.jsonl", [{"text": "a"}])
    assert seqpipe("check", "tiny.yaml", f"data.train={wrong}", "data.reader=jsonl", folder=here).code == 3
