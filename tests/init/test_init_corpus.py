"""Files of all kinds under tests/corpus/init through `init`: what is written or refused, and that it passes `check`.

`expected.yaml` in each folder says what a file gives: `outcome` yaml or refusal, `head` (its `use`), `contains` (texts
in the YAML)
and `says` (texts in what is said,
which the YAML's comments repeat).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from seqpipe.commands.app import app
from seqpipe.config import loader
from seqpipe.config import yaml as checked_yaml

CORPUS = Path(__file__).parents[1] / "corpus" / "init"
EXPECTED = "expected.yaml"


def _expectations() -> list[tuple[Path, dict[str, Any]]]:
    files = []
    for listed in sorted(CORPUS.glob(f"*/{EXPECTED}")):
        tree: Any = checked_yaml.parse(listed.read_bytes(), str(listed)).data
        files += [(listed.parent / name, wanted) for name, wanted in tree.items()]
    return files


@pytest.mark.parametrize(
    ("data", "wanted"), [pytest.param(*row, id=str(row[0].relative_to(CORPUS))) for row in _expectations()]
)
def test_a_file_gives_the_yaml_or_the_refusal_that_it_should(
    data: Path, wanted: dict[str, Any], tmp_path: Path
) -> None:
    if data.suffix == ".xlsx":
        pytest.importorskip("python_calamine")
    if data.suffix == ".zst":
        pytest.importorskip("pyarrow")
    made = tmp_path / "made.yaml"
    result = CliRunner().invoke(app, ["init", "--data", str(data), "-o", str(made)])
    text = made.read_text(encoding="utf-8") if made.exists() else ""
    said = " ".join(f"{result.output} {result.exception or ''} {text}".split())
    for part in wanted.get("says", []):
        assert part in said
    assert made.exists() == (wanted["outcome"] == "yaml"), said
    if wanted["outcome"] == "refusal":
        assert result.exit_code != 0
        assert str(data) in said
        return
    for part in wanted.get("contains", []):
        assert part in text
    config = loader.load(made)
    assert config.head[0].use == wanted["head"]
    checked = CliRunner().invoke(app, ["check", "--static", str(made)])
    assert checked.exit_code == 0, checked.output


def test_every_file_has_its_expectation() -> None:
    listed = {path for path, _ in _expectations()}
    for folder in CORPUS.iterdir():
        assert {*folder.iterdir()} - {folder / EXPECTED} <= listed
