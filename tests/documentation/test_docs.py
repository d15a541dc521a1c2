"""Every page of the documentation does what it says, the generated ones are fresh, and the site builds."""

import contextlib
import os
import re
import select
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import doc_pages
import pytest
import yaml
from cuda_placement import faults_on_cuda
from doc_pages import Block, Checkout, PageError, check_syntax, code_blocks, compare_output, make_checkout, run_page
from forked_commands import Forks
from repository_scripts import load_script

from seqpipe.answers.registry import ANSWER_KINDS, TASKS
from seqpipe.config.plugins import BUILTIN, Plugins
from seqpipe.config.signature import COMMON_KEYS, WIRED, component_options, construct, validate_model, values

DOCS = doc_pages.ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if "node_modules" not in path.parts)
LONG = ("plugins/tutorial.md",)  # .ci/run goes through it in an environment that is empty at first
RUNNABLE = ("sh", "bash", "python")
NEEDED = {  # packages of the extra `dev` that pages import or start
    "deploy/recipes.md": ("celery", "fastapi", "flask", "gunicorn", "pandas"),
    "deploy/serve.md": ("openai", "tritonclient"),
}


def blocks(name: str) -> list[Block]:
    """The blocks of a page."""
    return [*code_blocks((DOCS / name).read_text(encoding="utf-8"))]


def runs(name: str, hows: Sequence[str] = ("", "fresh", "long")) -> bool:
    """Return if a page has blocks to run that are marked in one of these ways."""
    return any(block.language in RUNNABLE and not block.title and block.condition in hows for block in blocks(name))


@pytest.fixture
def place(tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    for name, value in forks.variables.items():
        monkeypatch.setenv(name, value)
    return make_checkout(tmp_path, fresh=False)


def marks(name: str) -> list[pytest.MarkDecorator]:
    """The markers of a page: `nightly`, or `long`, and the program that it needs."""
    runnable = [block.code for block in blocks(name) if block.language in RUNNABLE and block.condition == ""]
    calls = any("curl " in code for code in runnable)
    nightly = pytest.mark.nightly(f"docs/{name}", "tests/support/doc_pages.py")
    return [nightly] + [pytest.mark.long] * (name in LONG) + [pytest.mark.curl] * calls


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in PAGES if runs(name)])
def test_a_page_does_what_it_says(name: str, place: Checkout) -> None:
    for package in NEEDED.get(name, ()):
        pytest.importorskip(package)
    assert run_page(DOCS / name, place)
    for pipeline in (doc_pages.ROOT / "pipelines").glob("*.yaml"):  # those that the page has run
        graph = place.folder / "runs" / pipeline.stem / "bundle" / "model.onnx"
        assert not graph.exists() or faults_on_cuda(graph) == []


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", [name for name in PAGES if runs(name, ("long",))])
def test_a_page_does_what_it_says_at_full_size(name: str, place: Checkout) -> None:
    assert run_page(DOCS / name, place, long=True)


def test_pages_that_run_beside_each_other_start_servers_at_ports_of_their_own() -> None:
    pages: dict[str, list[str]] = {}
    for name in filter(runs, PAGES):
        runnable = (block for block in blocks(name) if block.language in RUNNABLE and block.condition != "no")
        code = "\n".join(block.code for block in runnable)
        for port in sorted(set(re.findall(r"seqpipe serve .*--port (\d+)", code))):
            pages.setdefault(port, []).append(name)
    assert len(pages) >= 4
    assert {port: names for port, names in pages.items() if len(names) > 1} == {}


@pytest.mark.parametrize("name", [name for name in PAGES if not runs(name)])
def test_what_a_page_only_shows_can_be_read(name: str) -> None:
    for block in blocks(name):
        check_syntax(block)


def generate() -> ModuleType:
    return load_script(DOCS / "generate.py")


@pytest.mark.parametrize("name", generate().PAGES)
def test_generated_pages_and_tables_are_current(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "requirements/README.md":
        pytest.importorskip("piplicenses")
    monkeypatch.setenv("SEQPIPE_PLUGINS", "off")
    text = (doc_pages.ROOT / name).read_text(encoding="utf-8")
    assert text == generate().PAGES[name](), "run: python docs/generate.py"


def test_the_example_of_each_component_is_accepted_by_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQPIPE_PLUGINS", "off")
    component_example, from_nowhere = generate().component_example, 0
    for offer in (offer for offer in Plugins().offers if offer.distribution == BUILTIN):
        text, source = component_example(offer.kind, offer.name)
        entries = yaml.safe_load(text)
        entries = entries.get("data", entries)
        (value,) = entries.values()
        uses = [
            {"use": use} if isinstance(use, str) else use for use in (value if isinstance(value, list) else [value])
        ]
        (options,) = (use for use in uses if use["use"] == offer.name)
        options = {key: option for key, option in options.items() if key not in COMMON_KEYS[offer.kind]}
        validated, mistakes = validate_model(component_options(offer.kind, offer.load()), options)
        assert validated is not None, (text, mistakes)
        if offer.kind == "reader":  # whose constructor checks the rest
            construct(offer.load(), **values(validated))
        from_nowhere += source == ""
    assert from_nowhere < 20


def test_figures_that_are_not_there_are_named() -> None:
    with_figures = generate().with_figures
    page = "docs/course/rnn.md"
    for key, message in {
        "nothing/memory": "benchmarks/results/nothing.json is missing",
        "gradients/nothing": "benchmarks/results/gradients.json has no question 'nothing'; it has gradients",
        "gradients/gradients, rows: `rnn`; `lstn`": "question 'gradients' has no rows `lstn`; it has `rnn`; ",
        "gradients/gradients, columns: accurate": "question 'gradients' has no columns accurate; it has accuracy; ",
    }.items():
        with pytest.raises(ValueError, match=re.escape(f"{page}: figures {key.partition(',')[0]}: {message}")):
            with_figures(page, f"<!-- figures: {key} -->\n<!-- end of figures -->\n")
    with pytest.raises(ValueError, match="a marker of figures is not closed"):
        with_figures(page, "<!-- figures: gradients/gradients -->\n")
    marker = "<!-- figures: gradients/gradients, rows: `gru`; `rnn`, columns: last step -->"
    table = with_figures(page, f"{marker}\nold\n<!-- end of figures -->\n").splitlines()[2:-2]
    assert [line.split(" | ")[0] for line in table] == ["| cell", "|---|---|", "| `gru`", "| `rnn`"]
    assert table[0] == "| cell | last step |"


def test_the_number_of_pipelines_is_written_into_one_sentence() -> None:
    with_pipelines, number = generate().with_pipelines, len([*doc_pages.ROOT.glob("pipelines/*.yaml")])
    assert with_pipelines("a.md", "See all 7 pipelines, 1 page.") == f"See all {number} pipelines, 1 page."
    assert with_pipelines("a.md", "7 [example pipelines](b.md)") == f"{number} [example pipelines](b.md)"
    for text in ("See all pipelines.", "7 pipelines are more than 5 pipelines."):
        with pytest.raises(ValueError, match=r"a\.md: states the number of pipelines [02] times"):
            with_pipelines("a.md", text)


def test_a_page_has_every_name_that_a_constructor_may_ask_for() -> None:
    text = (DOCS / "plugins/index.md").read_text(encoding="utf-8")
    assert [name for name in WIRED if f"| `{name}` |" not in text] == []


def test_a_page_has_every_target_and_every_output_of_the_answer_kinds() -> None:
    text = (DOCS / "plugins/answer-kinds.md").read_text(encoding="utf-8")
    names = {name for task in TASKS.values() for name in (*task.targets, *task.kind_type.decided)}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_the_page_of_answer_kinds_has_a_section_for_each() -> None:
    text = (DOCS / "plugins/answer-kinds.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*):", text, re.MULTILINE)
    assert {kind for heading in headings for kind in re.findall(r"`([\w-]+)`", heading)} == {*ANSWER_KINDS}


@pytest.mark.parametrize(("page", "count"), [("contributing.md", 30), ("internals/promises.md", 10)])
def test_every_file_that_a_page_names_exists(page: str, count: int) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    paths = sorted(set(re.findall(r"`([\w/]+/(?:\w+\.py)?)`", text)))
    assert len(paths) > count
    roots = [doc_pages.ROOT / folder for folder in ("", "seqpipe", "tests")]
    assert [path for path in paths if not any((root / path).exists() for root in roots)] == []


# The runner itself


def page_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_blocks_share_folder_variables_and_names(tmp_path: Path, place: Checkout) -> None:
    text = """
```sh
mkdir deep && cd deep && export WORD=one
```
```sh
echo "$WORD $(basename "$PWD")"
```
```text
one deep
```
```text title="word.txt"
two
```
```python
word = open("word.txt").read().strip()
```
```python
print(word)
```
```text
two
```
"""
    assert run_page(page_of(tmp_path, text), place) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```sh\nfalse\n```", "page.md:1: this block ended with code 1, not 0"),
        ("\n\n```sh\nfalse; true | cat nothing\n```", "page.md:3: "),
        ("```sh\ntrue  # exit code 2\n```", "ended with code 0, not 2"),
        ("```sh\nfalse\necho late  # exit code 0\n```", "ended with code 1, not 0"),
        ("```python\n1 / 0\n```", "ZeroDivisionError"),
        ("```python\nimport os; os._exit(3)\n```", "the interpreter ended with code 3"),
        ("```sh\necho one\n```\n```text\ntwo\n```", "page.md:4: the output is not what the page says"),
        ("```sh\necho one\n```\nprose\n```json\n{}\n```", "not JSON"),
        ("```yaml\na: [\n```", "page.md:1: this yaml cannot be read"),
        ("```json\n{a}\n```", "this json cannot be read"),
        ("```toml\na\n```", "this toml cannot be read"),
        ("```sh\ntrue", "this block never ends"),
    ],
)
def test_a_page_that_lies_is_found_out(text: str, message: str, tmp_path: Path, place: Checkout) -> None:
    with pytest.raises(PageError, match=re.escape(message)):
        run_page(page_of(tmp_path, text), place)


def test_a_page_that_fails_leaves_no_process_behind(tmp_path: Path, place: Checkout) -> None:
    os.mkfifo(place.folder / "held")
    held = os.open(place.folder / "held", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(PageError, match="code 1"):
        run_page(page_of(tmp_path, "```sh\nsleep 60 > held 2>&1 &\n```\n```sh\nfalse\n```\n"), place)
    assert select.select([held], [], [], 10)[0]  # at the end of what the process could have written
    assert os.read(held, 1) == b""
    os.close(held)


def test_a_block_may_say_that_it_is_not_run_or_only_in_a_fresh_environment(tmp_path: Path, place: Checkout) -> None:
    text = "<!-- run: fresh -->\n```sh\nfalse\n```\n<!-- run: no, because it never ends -->\n```sh\nfalse\n```\n"
    assert run_page(page_of(tmp_path, text), place) == 0
    place.fresh = True
    with pytest.raises(PageError, match="code 1"):
        run_page(page_of(tmp_path, text), place)


def test_a_block_may_say_that_it_is_long(tmp_path: Path, place: Checkout) -> None:
    page = page_of(tmp_path, "<!-- run: long -->\n```sh\nfalse\n```\n```text\nits output\n```\n")
    assert run_page(page, place) == 0
    with pytest.raises(PageError, match="code 1"):
        run_page(page, place, long=True)


TWO = '{"a": 0.5, "b": 1}\n'


@pytest.mark.parametrize(
    ("language", "expected", "output", "same"),
    [
        ("text", "a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("text", "a\n…\nd\n", "a\nd\n", True),
        ("text", "a … c\n", "a b c\n", True),
        ("text", "a … c\n", "a b\nc\n", False),
        ("text", "a\n", "a\nb\n", False),
        ("text", "…\nb\n", "a\n", False),
        ("text", "a.c\n", "abc\n", False),
        ("json", TWO, '{"a": 0.5004, "b": 1}', True),
        ("json", TWO, '{"a": 0.51, "b": 1}', False),
        ("json", TWO, '{"a": 0.5, "b": 2}', False),
        ("json", TWO, '{"a": 0.5}', False),
    ],
)
def test_an_ellipsis_stands_for_anything_and_numbers_of_json_may_differ_a_little(
    language: str, expected: str, output: str, same: bool
) -> None:
    with contextlib.nullcontext() if same else pytest.raises(PageError):
        compare_output(Block(language, expected, 1), output)


def test_what_a_page_installs_stays_with_the_page(place: Checkout) -> None:
    assert place.shell("python -c 'import seqpipe, torch'")[0] == 0
    where = place.shell("python -c \"import sysconfig; print(sysconfig.get_path('purelib'))\"")[1].strip()
    assert Path(where).is_relative_to(place.folder.parent / "env")


def test_pages_that_type_the_same_run_share_it(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "seqpipe"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nif [ -e runs/a ]; then echo nothing to do; else mkdir -p runs/a; echo made; fi\n")
    program.chmod(0o755)

    def typed(page: str, line: str, yaml: str = "name: a") -> str:
        folder = tmp_path / page
        folder.mkdir()
        (folder / "a.yaml").write_text(yaml)
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        variables = {"PATH": path, "PWD": str(folder), "SEQPIPE_CACHE": str(tmp_path / "cache")}
        place, block = Checkout(folder, variables, False), Block("sh", f"{line}\n", 1)
        with doc_pages.shared_runs(block, place):
            return place.shell(block.code)[1].strip()

    assert typed("first", "seqpipe run a.yaml train.epochs=3   # few") == "made"
    assert typed("second", "seqpipe run a.yaml train.epochs=3") == "nothing to do"
    assert typed("third", "seqpipe run a.yaml train.epochs=4") == "made"
    assert typed("fourth", "seqpipe run a.yaml train.epochs=3", "name: a\n") == "made"
    assert typed("fifth", "seqpipe run a.yaml train.epochs=3 2> word.txt") == "made"
