"""The recipes of docs/deploy/batch.md answer as the model does, where their packages are installed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import ROOT, code_blocks

from seqpipe import Model

PAGE = ROOT / "docs" / "deploy" / "batch.md"
RECIPES = {block.title: block.code for block in code_blocks(PAGE.read_text(encoding="utf-8")) if block.title}
PACKAGES = {"pool_job.py": "json", "spark_job.py": "pyspark", "dask_job.py": "dask", "datasets_job.py": "datasets"}
TEXTS = ["Anna calls Ben", "in New York", "", "Anna " * 5_000, *["Bern calls Zoe"] * 40]  # the fourth is too long


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * ("pool" not in name)) for name in PACKAGES]
)
def test_a_recipe_answers_as_the_model_does(name: str, tiny: Model, tiny_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip(PACKAGES[name])
    if name == "spark_job.py" and not shutil.which("java"):
        pytest.skip("needs Java, for Spark")
    shutil.copytree(tiny_bundle, tmp_path / "runs" / "ner" / "bundle")
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    rows = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / name).write_text(RECIPES[name])
    done = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    files = sorted(
        [*tmp_path.glob("answers.jsonl"), *tmp_path.glob("answers/*.json"), *tmp_path.glob("answers/*.part")]
    )
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    if name != "pool_job.py":  # whose lines have answers only
        lines = [json.loads(line["answer"]) for line in sorted(lines, key=lambda line: line["id"])]
    expected = tiny(TEXTS, on_error="skip")
    for answers in (lines, expected):  # messages have the number within a task
        assert "5,000 tokens exceed" in answers.pop(3)["error"]
    assert lines == expected


def test_every_recipe_is_short_and_has_a_test() -> None:
    assert RECIPES.keys() == PACKAGES.keys()
    assert max(len([line for line in code.splitlines() if line.strip()]) for code in RECIPES.values()) <= 20
