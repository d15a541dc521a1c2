"""The templates of `init`: each is YAML as it stands, and what is made of it passes `check`, whatever the data is."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml as pyyaml
from typer.testing import CliRunner

import seqpipe.init
from seqpipe.commands.app import app
from seqpipe.config import loader
from seqpipe.init.scripts import Scripts
from seqpipe.init.summary import DataSummary
from seqpipe.init.yaml import fill, model_yaml

TEMPLATES = Path(seqpipe.init.__file__).parent / "templates"
READERS: dict[
    str, tuple[str, dict[str, Any], str]
] = {  # by what is learned: the reader, its options, and a file that it reads
    "Entities": ("conll", {}, "in O\nBern B-city\n\n"),
    "Tags": ("conll", {"scheme": "none"}, "in ADP\nBern PROPN\n\n"),
    "Labels": ("csv", {}, "text,label,text_pair\na,x,b\nb,y,c\n"),
    "Numbers": ("csv", {"numbers": ["price"]}, "text,price,text_pair\na,1.5,b\nb,2.5,c\n"),
    "Texts": ("csv", {}, "text,target\na,b\nb,c\n"),
    "Answers": (
        "jsonl",
        {"text": None},
        '{"question": "a", "context": "b", "answers": {"text": [], "answer_start": []}}',
    ),
    "Pointers": ("points", {}, "0.1 0.2 0.3 0.4 output 1 2 1\n"),
    "Continuations": ("text", {}, "once upon a time\n"),
}


@pytest.mark.parametrize("path", sorted(TEMPLATES.iterdir()), ids=lambda path: path.stem)
def test_a_template_is_yaml_as_it_stands(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("## ")
    assert isinstance(pyyaml.safe_load(text), dict)


def summaries(kind: Any) -> list[DataSummary]:
    """Data of every size and script, with any number of labels, for one thing that is learned."""
    reader, options, _ = READERS[kind]
    made = []
    sizes = ((20, 200), (20, 20_000), (9_000, 10_000_000))
    scripts = (
        ((False, False), (True, False), (False, True))
        if kind in ("Entities", "Tags")
        else ((False, False), (True, False))
    )
    pairs = (["text"], ["text", "text_pair"]) if kind in ("Labels", "Numbers") else (["text"],)
    for (records, words), (unspaced, segmented), fields, few in itertools.product(sizes, scripts, pairs, (True, False)):
        summary = DataSummary(reader, dict(options), records=records, words=words, label_kind=kind, fields=fields)
        summary.unspaced, summary.segmented, summary.characters = unspaced, segmented, 5 * words
        summary.labels = Counter({f"l{number}": 9 for number in range(2 if few else 30)})
        summary.scripts = Scripts(texts=100, composed=0 if few else 100)
        summary.target = "price" if kind == "Numbers" else "target"
        summary.pointer = {"task": "tour" if few else None, "every": True, "close": few or None}
        made.append(summary)
    return made


@pytest.mark.parametrize("kind", READERS)
def test_what_is_made_of_a_template_passes_the_check_for_any_data(kind: str, tmp_path: Path) -> None:
    _, options, content = READERS[kind]
    (tmp_path / "train.data").write_text(content)
    texts = set()
    for summary, has_dev in itertools.product(summaries(kind), (True, False)):
        dev = "train.data" if has_dev else None
        head = fill(
            "data",
            {
                "file": "train.data",
                "size": "2 records",
                "remarks": None,
                "name": "made",
                "reader": summary.use,
                "options": "".join(
                    f", {name}: {'null' if value is None else value}" for name, value in options.items()
                ),
                "train": "train.data",
                "dev": dev,
                "test": dev,
                "suffix": ".data",
                "spans": False,
                "dev_share": None,
                "test_share": None if has_dev else 0.1,
                "skips_bad": has_dev,
                "has_bad": not has_dev,
            },
        )
        texts.add(head + model_yaml(summary, has_dev))
    assert len(texts) > 3
    for text in sorted(texts):
        assert not re.search(r"\$|#\?|##|None|, }|# *$", text, re.MULTILINE)
        (tmp_path / "made.yaml").write_text(text)
        assert loader.load(tmp_path / "made.yaml").name == "made"
    checked = CliRunner().invoke(app, ["check", "--static", str(tmp_path / "made.yaml")])
    assert checked.exit_code == 0, checked.output


def test_a_line_is_written_where_its_conditions_hold() -> None:
    values: dict[str, Any] = {"small": True, "dev": True, "entities": "1", "rare": False, "words": "2", "joint": False}
    values |= {"spaced": True, "unspaced": False, "segmented": False, "form": "NFC", "form_reason": "read alike"}
    values |= {"epochs": 40, "patience": 8, "calibrate": "true", "batch_tokens": 512, "gpu": None}
    text = fill("tagging", values)
    assert text.startswith(
        "tokenizer: {use: words, lowercase: true, fold_digits: true, normalize: NFC}  # read alike\n"
    )
    assert "epochs: 40\n" in text
    assert "hidden: 128" in text
    assert "hidden: 200" not in text
    assert fill("tagging", values | {"form": None, "form_reason": None}).startswith(
        "tokenizer: {use: words, lowercase: true, fold_digits: true}\n"
    )
    with pytest.raises(KeyError, match="spaced"):
        fill("tagging", {})
