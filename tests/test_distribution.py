"""Nobody is told to install somebody else's package: `seqpipe` on the index is not ours, `seqpipe-nlp` is."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

from seqpipe.config.plugins import BUILTIN
from seqpipe.version import VERSION

ROOT = Path(__file__).parents[1]
FOLDERS = ("seqpipe", "plugins", "docs", "tests", "benchmarks", "pipelines", ".ci")
ENDINGS = (".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".mjs", "")
OLD = re.compile(
    r"(?<![\w-])seqpipe\\?\[[a-z,]+\\?\]"  # with extras
    r"|pip install[^\n`&|;]*?[ \t]seqpipe(?![\w-])"  # by name alone
    r"|[\"']seqpipe\s*[<>=~!]=?\s*[\d{]"  # as a requirement
    r"|(?:version|distribution|requires)\([\"']seqpipe[\"']\)"  # as a distribution
)


def written() -> list[Path]:
    below = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return [
        path
        for path in (*ROOT.glob("*.*"), *below)
        if path.is_file() and path.suffix in ENDINGS and "__pycache__" not in path.parts and path != Path(__file__)
    ]


def test_no_file_names_the_package_of_a_stranger() -> None:
    found = {
        str(path.relative_to(ROOT)): OLD.findall(path.read_text(encoding="utf-8", errors="ignore"))
        for path in written()
    }
    assert len(found) > 300
    assert {path: old for path, old in found.items() if old} == {}


def test_the_old_form_would_be_found() -> None:
    for text in ("pip install 'seqpipe[cpu]'", "pip install seqpipe", '"seqpipe>=0.1"', 'metadata.version("seqpipe")'):
        assert OLD.search(text)
        assert not OLD.search(text.replace("seqpipe", "seqpipe-nlp"))


def test_the_distribution_is_ours_and_holds_the_built_in_components() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == BUILTIN == "seqpipe-nlp"
    assert metadata.version(BUILTIN) == VERSION
    assert list(project["scripts"]) == list(project["entry-points"]) == ["seqpipe"]


def test_the_extra_for_development_has_every_other_but_those_of_gpus_and_of_ray() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    included = {"dev"}
    while (
        more := {
            name
            for extra in included
            for requirement in extras[extra]
            if requirement.startswith("seqpipe-nlp[")
            for name in requirement.partition("[")[2].rstrip("]").split(",")
        }
        - included
    ):
        included |= more
    assert {*extras} - included == {"gpu", "ray"}
