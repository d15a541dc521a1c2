"""Texts that are too long for training: cut, split, or refused before it; and allocations that fail."""

from __future__ import annotations

import random
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from factory import write_jsonl

from seqpipe.config.loader import Config, load
from seqpipe.errors import ConfigError, DataError
from seqpipe.training import memory
from seqpipe.training.datasets import Batches, Example, examples, first_part, read
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.pipeline import Pipeline

HEADS = {
    "crf": "head: crf",
    "label": "head: label",
    "pointer": "head: pointer",
    "seq2seq": "head: {use: seq2seq, target_tokenizer: same}",
}


def pipeline(
    folder: Path,
    head: str,
    longest: int,
    *overrides: str,
    encoder: str = "{use: lstm, hidden: 8}",
    written: int | None = None,
) -> Config:
    draw = random.Random(1)
    records = []
    for i in range(30):
        words = draw.choices("abcdef", k=longest if i == 20 else draw.randint(3, 6))
        tags = ["B-X" if j % 3 == 0 else "I-X" for j in range(len(words))]
        text = " ".join(words)
        record = {"text": text, "label": words[0], "pointers": [*range(len(words))]}
        record["target"] = " ".join(words[:written])
        records.append(record | ({"words": words, "tags": tags} if head == "crf" else {}))
    write_jsonl(folder / "train.jsonl", records)
    lines = ["name: long", "data: {reader: jsonl, train: train.jsonl}", "tokenizer: words"]
    lines += ["embedding: {use: lookup, dim: 8}", f"encoder: {encoder}", HEADS[head], "train: {epochs: 1, threads: 1}"]
    path = folder / "long.yaml"
    path.write_text("\n".join(lines) + "\n")
    return load(path, overrides)


def prepared(config: Config) -> tuple[list[Example], list[str]]:
    records, warnings = read(config.data.reader, config.data.train), list[str]()
    return examples(config, fit_artifacts(config, records), records, warn=warnings.append), warnings


def test_a_split_text_has_all_of_its_words_and_whole_spans(tmp_path: Path) -> None:
    whole, _ = prepared(pipeline(tmp_path, "crf", 50))
    parts, warnings = prepared(pipeline(tmp_path, "crf", 50, "train.max_tokens=10", "train.too_long=split"))
    assert len(parts) == 29 + 6
    assert max(part.length for part in parts) == 9  # spans are three words long
    of_record = [part for part in parts if part.where.startswith("record 21 (")]
    assert [word for part in of_record for word in part.doc.words] == whole[20].doc.words
    assert [tag for part in of_record for tag in part.targets["tags"]] == whole[20].targets["tags"]
    assert all(
        part.doc.text[a:b] == w
        for part in of_record
        for (a, b), w in zip(part.doc.offsets, part.doc.words, strict=True)
    )
    assert warnings[0].startswith("1 texts of more than 10 tokens are split; the first: record 21 (")


@pytest.mark.parametrize("head", ["label", "seq2seq", "crf"])
def test_a_truncated_text_has_its_first_tokens(tmp_path: Path, head: str) -> None:
    data, _ = prepared(pipeline(tmp_path, head, 50, "train.max_tokens=9", "train.too_long=truncate"))
    assert [example.length for example in data][20] == 9
    assert len(data) == 30


@pytest.mark.parametrize(
    ("head", "overrides", "told"),
    [
        (
            "label",
            ["train.max_tokens=9"],
            r"record 21 \(.*train.jsonl:21\): 50 tokens exceed train.max_tokens: 9; .* truncate$",
        ),
        ("crf", ["train.max_tokens=9"], "too_long: truncate or split"),
        ("label", ["train.max_tokens=9", "train.too_long=split"], "its answer is about all of it"),
        ("pointer", ["train.max_tokens=9", "train.too_long=truncate"], "its answer is a place in it"),
        ("crf", ["train.max_tokens=2", "train.too_long=split"], "so does a span or a word of it"),
    ],
)
def test_what_cannot_be_cut_is_an_error(tmp_path: Path, head: str, overrides: list[str], told: str) -> None:
    with pytest.raises(DataError, match=told):
        prepared(pipeline(tmp_path, head, 50, *overrides))


def test_parts_need_a_limit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"truncate needs a limit; set train\.max_tokens"):
        pipeline(tmp_path, "label", 50, "train.too_long=truncate")


def test_a_quadratic_cost_counts_beyond_512_tokens() -> None:
    linear, quadratic = (Batches(None, [], 4096, None, 1, quadratic=flag) for flag in (False, True))  # type: ignore[arg-type]
    assert [linear.cost(n) for n in (10, 512, 2048)] == [10, 512, 2048]
    assert [quadratic.cost(n) for n in (10, 512, 2048)] == [10, 512, 8192]


@pytest.mark.skipif(sys.platform != "linux", reason="it reads the peak of the process from /proc")
@pytest.mark.parametrize(
    ("head", "encoder", "target"),
    [("label", "self-attention", None), ("seq2seq", "lstm", 300), ("seq2seq", "self-attention", 100)],
)
def test_an_estimate_from_shorter_texts_is_within_a_factor_of_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, encoder: str, target: int | None
) -> None:
    """A text of 2,400 tokens, once tried itself and once estimated from texts of up to 1,024."""
    options = ", score: additive, units: 4" if encoder == "self-attention" else ", hidden: 64"
    config = pipeline(tmp_path, head, 2400, encoder=f"{{use: {encoder}{options}}}", written=target)
    records = read(config.data.reader, config.data.train)
    artifacts = fit_artifacts(config, records)
    batches = Batches(artifacts, examples(config, artifacts, records), 256, None, 1, quadratic=True)
    said = []
    for tried in [memory.TRIED, memory.TRIED[:3]]:
        monkeypatch.setattr(memory, "TRIED", tried)
        line = memory.longest_text(Pipeline(config, artifacts), batches)
        assert f"record 21 ({tmp_path}/train.jsonl:21): 2,400 tokens" in line
        amount = re.match(r"memory: about ([\d.]+) (MB|GB) for", line)
        assert amount, line
        said.append(float(amount[1]) * {"MB": 1, "GB": 1000}[amount[2]])
    assert said[0] > 50  # of which what a process needs once is a small part
    assert 0.5 < said[1] / said[0] < 2, said


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_a_part_of_a_pair_has_the_same_share_of_its_source_and_its_target(tmp_path: Path, share: float) -> None:
    data, _ = prepared(pipeline(tmp_path, "seq2seq", 80, written=39))
    part = first_part(data[20], 80, share)
    assert (len(part.doc), len(part.targets["target_ids"])) == (80 * share, 40 * share)


LIMITED = """
import resource, sys
sys.path.insert(0, sys.argv[2])
import seqpipe.training.memory as memory
from seqpipe.commands.app import main
kib = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, ((kib << 10) + 500_000_000,) * 2)
if sys.argv[3] == "untested":
    memory.longest_text = lambda *arguments: ""
    import seqpipe.pipeline.training as training
    training.longest_text = memory.longest_text
sys.argv = ["seqpipe", sys.argv[3].replace("untested", "train"), sys.argv[1]]
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it limits the address space by setrlimit")
@pytest.mark.parametrize("command", ["check", "untested"])
def test_a_text_that_needs_too_much_memory_is_named(tmp_path: Path, command: str) -> None:
    assert resource.RLIMIT_AS
    pipeline(tmp_path, "label", 8_000, encoder="{use: self-attention, score: additive, units: 4}")
    arguments = [sys.executable, "-c", LIMITED, str(tmp_path / "long.yaml"), str(Path(__file__).parent), command]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == (3 if command == "check" else 7), done.stderr
    assert "record 21 (" in done.stderr
    assert "train.jsonl:21)" in done.stderr
    assert "8,000 tokens" in done.stderr
    assert "encoder" in done.stderr
    assert "train.too_long" in done.stderr
    assert "plugin" not in done.stderr
