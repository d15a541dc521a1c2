"""Readings of a file: doubts with their commands, two that are as good, shares for dev and test, and bad records."""

import contextlib
import gzip
import json
import os
import pty
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tiny_pipelines import command_line, fail_with, seqpipe, succeed

from seqpipe import OpenChoiceError, Pipeline
from seqpipe.config import loader
from seqpipe.errors import DataError
from seqpipe.init import init_yaml
from seqpipe.init.summary import size_of

URGENT = "text,label,urgent\n" + "some words here,bill,1\nother words,card,0\nmore words of it,card,1\n" * 20
SCORES = "".join(f"a good day number {n}\tещё один текст {n}\t{n / 7:.2f}\n" for n in range(120))
TWO_COLUMNS = "Ada B-NAME B-PER\nin O O\nRome B-NAME B-LOC\n\n" * 40


def small(path: Path) -> Path:
    """A table of 200 texts with two labels, and three rows that cannot be read."""
    rows = [f"{'good' if n % 4 else 'cold'} soup number {n},{'yes' if n % 4 else 'no'}" for n in range(200)]
    rows[10] += ",more"
    rows[50] = "no label"
    rows[60] = "no label here"
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


TWO_READINGS = [("pairs.tsv", SCORES, ["score", "seq2seq"]), ("names.conll", TWO_COLUMNS, ["crf", "crf"])]


@pytest.mark.parametrize(("name", "content", "heads"), TWO_READINGS)
def test_each_of_two_equally_good_readings_has_a_command(name: str, content: str, heads: list, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    done = seqpipe("init", name, folder=tmp_path)
    assert done.code == 3
    assert not [*tmp_path.glob("*.yaml")]
    commands = [line for line in done.err.splitlines() if line.startswith("seqpipe init ")]
    configs = []
    for number, line in enumerate(commands):
        _, *arguments = shlex.split(line)
        assert seqpipe(*arguments, "-o", f"{number}.yaml", folder=tmp_path).code == 0
        configs.append(loader.load_config(tmp_path / f"{number}.yaml"))
    assert [config.head[0].use for config in configs] == heads
    assert configs[0].data.reader.options != configs[1].data.reader.options or heads[0] != heads[1]


def test_the_command_of_a_doubt_gives_the_other_reading_and_check_repeats_the_doubt(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(URGENT)
    done = seqpipe("init", "a.csv", folder=tmp_path)
    (doubt,) = [line for line in done.err.splitlines() if line.startswith("doubtful: ")]
    assert doubt in seqpipe("check", "--static", "a.yaml", folder=tmp_path).err
    _, *arguments = shlex.split(doubt.rpartition(": ")[2])
    assert seqpipe(*arguments, "-o", "b.yaml", folder=tmp_path).code == 0
    assert loader.load_config(tmp_path / "b.yaml").data.reader.options["label"] == "urgent"
    (tmp_path / "a.yaml").write_text((tmp_path / "a.yaml").read_text().replace(f"# {doubt}\n", ""))
    assert "doubtful" not in seqpipe("check", "--static", "a.yaml", folder=tmp_path).err


def test_json_lists_the_readings_with_their_evidence(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(URGENT)
    content = json.loads(seqpipe("init", "a.csv", "--json", folder=tmp_path).out)
    assert content["file"] == "a.yaml"
    chosen, other = content["readings"]
    assert (chosen["task"], chosen["records"], chosen["command"]) == ("label", 60, "seqpipe init a.csv --task label")
    assert "Chose: column 'label' has 2 values in 60 rows." in chosen["evidence"]
    assert other["command"] == "seqpipe init a.csv --task label --target urgent"
    (tmp_path / "pairs.tsv").write_text(SCORES)
    refused = seqpipe("init", "--data", "pairs.tsv", "--json", folder=tmp_path)
    assert refused.code == 3
    assert json.loads(refused.out)["error"]["kind"] == "OpenChoiceError"


def test_a_choice_is_read_from_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text(SCORES)
    leader, follower = pty.openpty()
    with os.fdopen(follower) as terminal:
        streams = {"stdin": terminal, "stderr": terminal, "stdout": subprocess.DEVNULL}
        process = subprocess.Popen(command_line("init", "pairs.tsv"), cwd=tmp_path, **streams)
    os.write(leader, b"7\n1\n")
    assert process.wait(120) == 0
    os.close(leader)
    assert loader.load_config(tmp_path / "pairs.yaml").head[0].use == "score"


def test_python_writes_and_returns_the_pipeline_or_raises_with_the_readings(tmp_path: Path) -> None:
    messages: list[str] = []
    with contextlib.chdir(tmp_path):
        small(Path("shop.csv"))
        pipeline = Pipeline.init("shop.csv", progress=lambda progress: messages.append(progress.text))
        assert (pipeline.name, pipeline.config.file.name) == ("shop", "shop.yaml")
        assert any(line.startswith("doubtful: 3 records cannot be read") for line in messages)
        Path("pairs.tsv").write_text(SCORES)
        with pytest.raises(OpenChoiceError) as raised:
            Pipeline.init("pairs.tsv")
        score, writing = raised.value.readings
        assert score == ["--task", "score", "--target", "3", "--text", "1", "--text", "2"]
        assert writing == ["--task", "seq2seq", "--target", "2", "--text", "1"]
        assert Pipeline.init("pairs.tsv", "a.yaml", task="seq2seq").config.head[0].use == "seq2seq"


@pytest.mark.parametrize(("records", "beside", "shares"), [(99, [], []), (100, [], [0.1, 0.1]), (100, ["dev"], [0.1])])
def test_shares_need_a_hundred_records_and_no_files(records: int, beside: list, shares: list, tmp_path: Path) -> None:
    rows = "".join(f"some words {n},{'ab'[n % 2]}\n" for n in range(records))
    for name in ("train", *beside):
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{rows}")
    seqpipe("init", "train.csv", "-o", "a.yaml", folder=tmp_path)
    data = loader.load_config(tmp_path / "a.yaml").data
    parts: list[Any] = [part for part in (data.dev, *data.tests.values()) if not isinstance(part, Path)]
    assert [getattr(part, part.role) for part in parts if part] == shares


def test_a_run_trains_on_what_the_shares_leave_and_scores_the_parts_that_it_writes(tmp_path: Path) -> None:
    small(tmp_path / "shop.csv")
    assert seqpipe("init", "shop.csv", folder=tmp_path).code == 0
    done = succeed("run", "shop.yaml", "train.epochs=1", "--device", "cpu", folder=tmp_path)
    assert "warning: 3 records are left out of " in done.err
    texts = [*(f"shop.csv:{line}: " for line in (12, 52, 62)), "157 examples", "test: 20 records"]
    assert [text for text in texts if text not in done.err] == []
    dev, test = ((tmp_path / f"runs/shop/data/{role}.jsonl").read_text().splitlines() for role in ("dev", "test"))
    assert (len(dev), len(test)) == (20, 20)
    assert sum(json.loads(line)["label"] == "no" for line in test) == 5
    again = json.loads(seqpipe("evaluate", "runs/shop/bundle", "--json", folder=tmp_path).out)
    assert again["test"] == json.loads((tmp_path / "runs/shop/metrics.json").read_text())["test"]
    changed = seqpipe("run", "shop.yaml", "train.epochs=1", "data.split_seed=2", "--device", "cpu", folder=tmp_path)
    assert (changed.code, "data.split_seed" in changed.err) == (2, True)


def test_a_share_must_be_one_and_bad_rows_a_reader_that_can(tmp_path: Path) -> None:
    small(tmp_path / "shop.csv")
    seqpipe("init", "shop.csv", folder=tmp_path)
    fail_with(2, "data.dev", "check", "shop.yaml", "data.dev=0.7", folder=tmp_path)
    other = seqpipe("check", "shop.yaml", "data.reader={use: folders}", folder=tmp_path)
    assert "the reader 'folders' cannot leave records out; delete the key" in other.err


@pytest.mark.parametrize("suffix", [".txt", ".gz"])
def test_the_size_of_a_file_is_that_of_what_it_holds(suffix: str, tmp_path: Path) -> None:
    data, content = tmp_path / f"data{suffix}", b"wake me at seven\n" * 100
    data.write_bytes(gzip.compress(content) if suffix == ".gz" else content)
    assert size_of(data) == len(content)


def test_one_empty_target_among_many_is_one_record(tmp_path: Path) -> None:
    rows = [f"{'abc'[i % 3]} word {i} of a text,{i} TEXT A OF WORD {'ABC'[i % 3]}" for i in range(300)]
    rows[56] = "a lonely source text,"
    (tmp_path / "a.csv").write_text("source,target\n" + "\n".join(rows) + "\n")
    yaml = init_yaml(tmp_path / "a.csv", tmp_path / "a.yaml").read_text()
    assert "doubtful: 1 record has an empty column 'target', such as" in yaml
    assert "a.csv:58; write it, or remove them" in yaml
    (tmp_path / "b.csv").write_text("source,target\n" + "\n".join(rows[:20] + rows[56:57] * 4) + "\n")
    with pytest.raises(DataError, match="is to be learned and empty in 4 rows"):
        init_yaml(tmp_path / "b.csv", tmp_path / "b.yaml")
