"""In a notebook: progress bars and nothing else, an interrupt that saves; the notebooks of `examples/`."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from doc_pages import OUTPUTS, ROOT, SHELLS, Block, code_blocks, compare_output, copy_checkout
from repository_scripts import load_script

from seqpipe.training import progress
from seqpipe.training.progress import Interrupts

NOTEBOOKS = ROOT / "examples" / "notebooks"
SCRIPTS = sorted(NOTEBOOKS.glob("[0-9]*.py"))
for package in ("ipykernel", "ipywidgets", "jupytext", "tqdm"):
    pytest.importorskip(package)
jupyter = pytest.importorskip("jupyter_client.manager")
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
COURSE = sorted((ROOT / "docs" / "course").glob("*.md"))
START = """
from pathlib import Path
import torch
from tiny_pipelines import SMALL_TAGGER, write_tagger
from seqpipe import Pipeline
torch.set_num_threads(1)
pipeline = Pipeline(write_tagger(Path()), [*SMALL_TAGGER, "train.epochs=300"])
"""


@dataclass
class Reply:
    """The answer of a kernel to a cell: how it ended, the printed text, and the data of what it displayed."""

    status: str = ""
    error: str = ""
    printed: str = ""
    shown: list[dict[str, Any]] = field(default_factory=list)
    widgets: list[Any] = field(default_factory=list)  # the states that were sent to the page


@dataclass
class Kernel:
    """A kernel of Jupyter that runs cells."""

    manager: Any
    client: Any

    def __call__(self, code: str, on_print: Callable[[str], None] = lambda text: None) -> Reply:
        reply = Reply()

        def receive(message: dict[str, Any]) -> None:
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    reply.printed += content["text"]
                    on_print(content["text"])
                case "display_data" | "execute_result":
                    reply.shown.append(content["data"])
                case "comm_open" | "comm_msg":
                    reply.widgets.append(content["data"].get("state", {}))

        end = self.client.execute_interactive(code, output_hook=receive, timeout=200)["content"]
        reply.status, reply.error = end["status"], f"{end.get('ename')}: {end.get('evalue')}"
        return reply


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")}
    folder = str(tmp_path_factory.mktemp("kernel"))
    with jupyter.run_kernel(startup_timeout=100, cwd=folder, env=environment) as client:
        kernel = Kernel(client.parent, client)
        started = kernel(START)
        assert (started.status, started.printed) == ("ok", ""), started
        yield kernel


def test_a_notebook_shows_a_bar_and_prints_only_what_is_asked_for(kernel: Kernel) -> None:
    # A bar is drawn at most every tenth of a second: after the pause, the next step draws it.
    wait = "__import__('time').sleep(0.2)"
    cell = f"run = pipeline.train(device='cpu', runs='quiet', on_epoch=lambda history: {wait} or len(history) == 3)"
    reply = kernel(cell)
    assert (reply.status, reply.printed) == ("ok", "")
    (bar,) = reply.shown
    assert "training" in bar["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in bar
    assert any("loss" in str(state.get("value")) for state in reply.widgets)
    assert "danger" not in [state.get("bar_style") for state in reply.widgets]  # as a bar that ends early would be
    assert kernel("pipeline.train(runs='none', progress=False, on_epoch=bool)").shown[0].keys() >= {"text/html"}
    reply = kernel("run = pipeline.train(runs='own', on_epoch=bool, progress=lambda report: print(report.kind))")
    assert {*reply.printed.split()} >= {"message", "step", "end"}
    assert reply.shown == []


def test_an_interrupt_of_the_kernel_saves_a_checkpoint_from_which_the_same_cell_resumes(kernel: Kernel) -> None:
    interrupts: list[str] = []

    def interrupt(text: str) -> None:
        if "epoch 3" in text and not interrupts:
            interrupts.append(text)
            kernel.manager.interrupt_kernel()

    cell = "run = pipeline.train(device='cpu', on_epoch=lambda history: print('epoch', len(history), flush=True) or {})"
    reply = kernel(cell.format("False"), interrupt)
    assert reply.status == "error"
    assert reply.error.startswith("InterruptedRunError: SIGINT: stopped in epoch ")
    assert reply.error.endswith("state saved in runs/tiny/checkpoints; run the same command to resume")
    trained = len(reply.printed.splitlines())
    assert 3 <= trained < 300
    reply = kernel(cell.format(f"len(history) == {trained + 2}"))
    assert reply.status == "ok", reply.error
    assert reply.printed.splitlines() == [f"epoch {trained + 1}", f"epoch {trained + 2}"]
    epochs = kernel("print(*(row['epoch'] for row in run.history))").printed.split()
    assert epochs == [str(epoch) for epoch in range(1, trained + 3)]


def test_a_second_interrupt_ends_the_cell_and_not_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # that of a kernel
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            assert interrupts.received == signal.SIGINT
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_notebook_is_what_jupytext_makes_of_its_script(script: Path) -> None:
    made = load_script(NOTEBOOKS / "make.py").notebook(script)
    assert script.with_suffix(".ipynb").read_text(encoding="utf-8") == made, "run: python examples/notebooks/make.py"
    assert len(nbformat.reads(made, 4).cells) > 8


def test_a_csv_becomes_a_run_a_bundle_and_an_answer_in_at_most_six_lines_of_the_page() -> None:
    page = code_blocks((ROOT / "docs" / "python.md").read_text(encoding="utf-8"))
    code = next(block.code for block in page if block.language == "python")  # which the test of the page runs
    assert all(part in code for part in (".csv", ".run()", ".bundle", "show("))
    assert len([line for line in code.splitlines() if line]) <= 6


def code_cells(book: Any) -> list[Any]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def test_the_notebook_that_trains_and_ships_runs(kernel: Kernel) -> None:
    book = nbformat.read(SCRIPTS[0].with_suffix(".ipynb"), 4)
    replies = [kernel(cell.source) for cell in code_cells(book)]
    assert [reply.error for reply in replies if reply.status != "ok"] == []
    pictures = [data["text/html"] for reply in replies for data in reply.shown if "text/html" in data]
    assert ["<svg" in picture for picture in pictures] == [True, False, False]  # the run, its history, two answers
    assert all(f">{intent}</bdi>" in pictures[2] for intent in ("delivery", "refund", "opening hours"))
    assert replies[-1].shown[-1]["text/plain"].startswith("{'bundle': 'shipped'")


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_notebook_runs_from_its_first_cell_to_its_last(script: Path, tmp_path: Path) -> None:
    book = nbformat.read(script.with_suffix(".ipynb"), 4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=200, kernel_name="python3", resources=resources).execute()
    assert [cell for cell in code_cells(book) if not cell.execution_count] == []


# The course


def course_notebook(page: Path) -> Any:
    return nbformat.reads(load_script(NOTEBOOKS / "make.py").course_notebook(page), 4)


def course_cells(page: Path, book: Any) -> list[tuple[Block, Any, Block | None]]:
    """The blocks of a page that are cells of its notebook, these cells, and the output expected of each, or None."""
    blocks = [*code_blocks(page.read_text(encoding="utf-8"))]
    pairs = []
    for block, after in zip(blocks, [*blocks[1:], Block("", "", 0)], strict=True):
        if block.condition not in ("long", "no") and (block.title or block.language in ("python", *SHELLS)):
            expects = not block.title and not after.title and after.language in OUTPUTS
            pairs.append((block, after if expects else None))
    cells = [cell for cell in code_cells(book) if not cell.source.startswith("!mkdir")]
    return [(block, cell, expected) for (block, expected), cell in zip(pairs, cells, strict=True)]


@pytest.mark.parametrize("page", COURSE, ids=lambda page: page.stem)
def test_the_notebook_of_a_page_has_its_code_its_formulas_and_its_pictures(page: Path) -> None:
    book = course_notebook(page)
    nbformat.validate(book)
    cells = course_cells(page, book)
    assert len(cells) > 2
    for block, cell, _ in cells:
        magic = f"%%writefile {block.title}\n" if block.title else "%%bash -e\n" if block.language in SHELLS else ""
        assert cell.source.rstrip() == f"{magic}{block.code}".rstrip()
    prose = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    formulas = [block for block in code_blocks(page.read_text(encoding="utf-8")) if block.language == "math"]
    assert prose.count("$$") == 2 * len(formulas) > 0
    assert [mark for mark in ("$`", "`$", "<!--", "](../") if mark in prose] == []
    assert [name for cell in book.cells for name in cell.get("attachments", {})] != []


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", COURSE, ids=lambda page: page.stem)
def test_the_notebook_of_a_page_prints_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_checkout(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    book = course_notebook(page)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=600, kernel_name="python3", resources=resources).execute()
    for _, cell, expected in course_cells(page, book):
        if expected:
            compare_output(expected, "".join(out.text for out in cell.outputs if out.output_type == "stream"))
