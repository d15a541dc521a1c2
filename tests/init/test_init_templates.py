"""The templates of `init`: each is YAML as it stands, and a filled one is valid for any data."""

import itertools
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml as pyyaml

import seqpipe.init
from seqpipe.config import loader
from seqpipe.init.scripts import Scripts
from seqpipe.init.summary import DataSummary
from seqpipe.init.yaml import fill, model_yaml

TEMPLATES = Path(seqpipe.init.__file__).parent / "templates"
ANSWER = '{"question": "a", "context": "b", "answers": {"text": [], "answer_start": []}}'
# The reader of each kind of labels, its options, and a file that it reads.
READERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "Entities": ("conll", {}, "in O\nBern B-city\n\n"),
    "Tags": ("conll", {"scheme": "none"}, "in ADP\nBern PROPN\n\n"),
    "Labels": ("csv", {}, "text,label,text_pair\na,x,b\nb,y,c\n"),
    "Numbers": ("csv", {"numbers": ["price"]}, "text,price,text_pair\na,1.5,b\nb,2.5,c\n"),
    "Texts": ("csv", {}, "text,target\na,b\nb,c\n"),
    "Answers": ("jsonl", {"text": None}, ANSWER),
    "Pointers": ("points", {}, "0.1 0.2 0.3 0.4 output 1 2 1\n"),
    "Continuations": ("text", {}, "once upon a time\n"),
}


@pytest.mark.parametrize("path", sorted(TEMPLATES.iterdir()), ids=lambda path: path.stem)
def test_a_template_is_yaml_as_it_stands(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("## ")
    assert isinstance(pyyaml.safe_load(text), dict)


def summaries(kind: Any) -> list[DataSummary]:
    """Data of every size and script, with few labels and many."""
    reader, options, _ = READERS[kind]
    sizes = [(20, 200), (20, 20_000), (9_000, 10_000_000)]
    scripts = [(False, False), (True, False), (False, True)][: 3 if kind in ("Entities", "Tags") else 2]
    fields = [["text"], ["text", "text_pair"]][: 2 if kind in ("Labels", "Numbers") else 1]
    all_summaries = []
    for (records, words), (unspaced, segmented), texts, few in itertools.product(sizes, scripts, fields, (True, False)):
        summary = DataSummary(reader, dict(options), records=records, words=words, label_kind=kind, fields=texts)
        summary.unspaced, summary.segmented, summary.characters = unspaced, segmented, 5 * words
        summary.labels = Counter({f"l{number}": 9 for number in range(2 if few else 30)})
        summary.scripts = Scripts(texts=100, composed=0 if few else 100)
        summary.target = "price" if kind == "Numbers" else "target"
        summary.pointer = {"task": "tour" if few else None, "every": True, "close": few or None}
        all_summaries.append(summary)
    return all_summaries


@pytest.mark.parametrize("kind", READERS)
def test_a_filled_template_is_valid_for_any_data(kind: str, tmp_path: Path) -> None:
    _, options, content = READERS[kind]
    (tmp_path / "train.data").write_text(content)
    yaml_options = "".join(f", {name}: {'null' if value is None else value}" for name, value in options.items())
    common = {"file": "train.data", "size": "2 records", "name": "filled", "train": "train.data", "suffix": ".data"}
    common |= {"remarks": None, "options": yaml_options, "spans": False, "dev_share": None}
    texts = set()
    for summary, has_dev in itertools.product(summaries(kind), (True, False)):
        dev = "train.data" if has_dev else None
        values = {"reader": summary.use, "dev": dev, "test": dev, "test_share": None if has_dev else 0.1}
        values |= {
            "group": "",
            "skips_bad": has_dev,
            "has_bad": not has_dev,
            "split": None,
            "split_dev": False,
            "split_test": False,
        }
        texts.add(fill("data", common | values) + model_yaml(summary, has_dev))
    assert len(texts) > 3
    for text in sorted(texts):
        assert not re.search(r"\$|#\?|##|None|, }|# *$", text, re.MULTILINE)
        (tmp_path / "filled.yaml").write_text(text)
        assert loader.load_config(tmp_path / "filled.yaml").name == "filled"


def test_a_line_is_written_if_its_conditions_hold() -> None:
    values: dict[str, Any] = {"small": True, "dev": True, "entities": "1", "rare": False, "words": "2", "joint": False}
    values |= {"spaced": True, "unspaced": False, "segmented": False, "form": "NFC", "form_reason": "read alike"}
    values |= {"epochs": 40, "patience": 8, "calibrate": "true", "batch_tokens": 512, "gpu": None}
    text = fill("crf", values)
    tokenizer = "tokenizer: {use: words, lowercase: true, fold_digits: true"
    assert text.startswith(f"{tokenizer}, normalize: NFC}}  # read alike\n")
    assert "epochs: 40\n" in text
    assert "hidden: 128" in text
    assert "hidden: 200" not in text
    assert fill("crf", values | {"form": None, "form_reason": None}).startswith(f"{tokenizer}}}\n")
    with pytest.raises(KeyError, match="spaced"):
        fill("crf", {})
