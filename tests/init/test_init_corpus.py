"""Files of all kinds under tests/corpus/init through `init`: the YAML or the refusal, and that the YAML is valid.

`expected.yaml` in each folder has the result for each file: `outcome` yaml or refusal, `head` (its `use`), `contains`
(texts in the YAML) and `says` (texts in messages, which the YAML's comments repeat).
"""

from pathlib import Path
from typing import Any

import pytest

from seqpipe.config import loader
from seqpipe.config import yaml as checked_yaml
from seqpipe.errors import SeqpipeError
from seqpipe.init import init_yaml

CORPUS = Path(__file__).parents[1] / "corpus" / "init"
EXPECTED = "expected.yaml"
CASES: dict[Path, dict[str, Any]] = {}
for listing in sorted(CORPUS.glob(f"*/{EXPECTED}")):
    tree: Any = checked_yaml.parse_tree(listing.read_bytes(), str(listing)).data
    CASES |= {listing.parent / name: expected for name, expected in tree.items()}


@pytest.mark.parametrize("data", CASES, ids=lambda path: str(path.relative_to(CORPUS)))
def test_a_file_gives_the_expected_yaml_or_refusal(data: Path, tmp_path: Path) -> None:
    for suffix, package in ((".xlsx", "python_calamine"), (".zst", "pyarrow")):
        if data.suffix == suffix:
            pytest.importorskip(package)
    yaml, messages, expected = tmp_path / "init.yaml", list[str](), CASES[data]
    try:
        init_yaml(data, yaml, messages.append)
    except SeqpipeError as error:
        messages.append(str(error))
    text = yaml.read_text(encoding="utf-8") if yaml.exists() else ""
    all_text = " ".join(f"{' '.join(messages)} {text}".split())
    assert yaml.exists() == (expected["outcome"] == "yaml"), all_text
    assert [part for part in expected.get("says", []) if part not in all_text] == []
    if expected["outcome"] == "refusal":
        assert str(data) in messages[-1]
        return
    assert [part for part in expected.get("contains", []) if part not in text] == []
    assert loader.load_config(yaml).head[0].use == expected["head"]


def test_every_file_has_its_expectation() -> None:
    for folder in CORPUS.iterdir():
        assert {*folder.iterdir()} - {folder / EXPECTED} <= CASES.keys()
