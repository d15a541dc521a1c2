"""Nobody is told to install somebody else's package: `seqpipe` on the index is not ours, `seqpipe-nlp` is."""

import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from repository_scripts import PROJECT, ROOT

from seqpipe.config.plugins import BUILTIN
from seqpipe.version import VERSION

pytestmark = pytest.mark.nightly("pyproject.toml", "README.md", "docs/*", "requirements/*", "tests/releases/*")

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


# No index has the distribution: pages install a checkout (`.`) or a wheel, messages call `install_command`. What
# `deploy` writes, with the name that `seqpipe.commands.deploy.requirement` returns, is not among these files.
FROM_AN_INDEX = re.compile(r"pip3? install[^`|&;#]{0,80}seqpipe-nlp")
FROM_HERE = re.compile(r"pip3? install[^`|&;\n]*(?:[\"' ]\.|\.whl)\[([\w,-]+)\]")


def shown() -> dict[str, str]:
    """The text of each page, notebook, module and template of the project, by path."""
    roots = [ROOT / folder for folder in ("seqpipe", "plugins", "docs", "examples", "benchmarks", "requirements")]
    files = [*ROOT.glob("*.md"), ROOT / "pipelines/schema.json", *(path for root in roots for path in root.rglob("*"))]
    endings = {*ENDINGS, ".ipynb", ".json"} - {""}
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in files
        if path.suffix in endings and "node_modules" not in path.parts
    }


def test_no_text_installs_the_distribution_from_an_index() -> None:
    texts = shown()
    assert len(texts) > 300
    assert {path: found for path, text in texts.items() if (found := FROM_AN_INDEX.findall(text))} == {}


@pytest.mark.parametrize(
    "text",
    [
        'pip install "seqpipe-nlp[cpu]"',
        "pip install 'seqpipe-nlp[cpu,serve]==0.1.0'",
        "pip install seqpipe-nlp",
        "RUN pip install --no-cache-dir seqpipe-nlp[cpu]",
        r"pip install \"seqpipe-nlp[train]\"",
        'needs pyarrow: `pip install\n    "seqpipe-nlp[parquet]"`',
    ],
)
def test_an_installation_from_an_index_is_found_in_any_quotes(text: str) -> None:
    assert FROM_AN_INDEX.search(text)


def test_the_lines_that_install_name_this_wheel_and_extras_that_exist() -> None:
    extras = PROJECT["optional-dependencies"]
    texts = shown()
    wheels = {path: {*re.findall(r"seqpipe_nlp-([\d.]+)-py3", text)} for path, text in texts.items()}
    assert len([path for path, versions in wheels.items() if versions]) > 5
    assert {path: versions for path, versions in wheels.items() if versions - {VERSION}} == {}
    named = {
        path: {name for names in FROM_HERE.findall(text) for name in names.split(",")} for path, text in texts.items()
    }
    assert {"cpu", "serve", "train", "media"} <= set().union(*named.values())
    assert {path: names for path, names in named.items() if names - {*extras}} == {}


def test_the_distribution_is_ours_and_holds_the_built_in_components() -> None:
    assert PROJECT["name"] == BUILTIN == "seqpipe-nlp"
    assert metadata.version(BUILTIN) == VERSION
    assert list(PROJECT["scripts"]) == list(PROJECT["entry-points"]) == ["seqpipe"]


def test_the_extra_for_development_has_every_other_but_those_of_gpus_and_of_ray() -> None:
    included, extras = {"dev"}, PROJECT["optional-dependencies"]
    while more := {name for extra in included for name in nested(extras[extra])} - included:
        included |= more
    assert {*extras} - included == {"gpu", "ray"}


def nested(requirements: Sequence[str]) -> set[str]:
    """The extras that an extra names."""
    texts = [text for text in requirements if text.startswith("seqpipe-nlp[")]
    return {name for text in texts for name in Requirement(text).extras}
