"""A bundle stays readable: one of every answer kind, stored when it was made, loads, and answers as it did then.

Files are added when the format changes (`tests/stored/format-N/NAME.zip`, the files of a bundle), and none is written
anew: that is the test.
"""

import json
import zipfile
from pathlib import Path

import pytest

from seqpipe import load
from seqpipe.answers.registry import ANSWER_KINDS

STORED = sorted((Path(__file__).parents[1] / "stored").glob("format-*/*.zip"))


@pytest.mark.parametrize("stored", STORED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_stored_bundle_answers_its_golden_examples(stored: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(stored).extractall(tmp_path)
    model = load(tmp_path, "cpu", threads=1)
    assert model.manifest.golden
    assert model.verify() == []


def test_every_answer_kind_is_stored() -> None:
    kinds = set()
    for stored in STORED:
        answer = json.loads(zipfile.ZipFile(stored).read("bundle.json"))["answer"]
        kinds |= {head["kind"] for head in answer.get("heads", {"": answer}).values()}
    assert {*ANSWER_KINDS} - kinds == set()
