"""Write notebooks: those of this folder from their scripts, those of the course from its pages.

python examples/notebooks/make.py                   # the notebooks of this folder
python examples/notebooks/make.py --course FOLDER   # a notebook for each page of docs/course
"""

from __future__ import annotations

import argparse
import base64
import re
import textwrap
from pathlib import Path

import jupytext
import nbformat

FOLDER = Path(__file__).resolve().parent
COURSE = FOLDER.parents[1] / "docs" / "course"
DOCS_URL = "https://github.com/seqpipe/seqpipe/blob/main/docs"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
BLOCK = re.compile(r"^( *)(`{3,}|~{3,})([^\n]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r"\$`([^`\n]+)`\$")
_MARK = re.compile(r"<!-- (?:run: (?P<how>\w+)|figures: |end of figures)[^\n]*-->\n*")
_LINK = re.compile(r"(\]\()(?!https?:|#|attachment:)([^)#\s]*)")
_PICTURE = re.compile(r"(!\[[^\]]*\]\()(\w[\w-]*\.svg)\)")
HEAD = """This notebook is [a page of seqpipe's course]({url}). Start Jupyter in the folder of a checkout of seqpipe,
after `pip install -c constraints.txt -e ".[train,cpu,report]"`: the cells read its files and write to `runs/`."""


def notebook(script: Path) -> str:
    """Return the notebook of a script in the percent format of jupytext, without outputs; the same bytes each time."""
    return _write(jupytext.read(script))


def course_notebook(page: Path) -> str:
    """Return the notebook of a page of the course, without outputs; the same bytes each time.

    Blocks of Python and bash become cells, blocks with a title cells that write the file. Blocks that the page marks
    with `run: long` or `run: no` and expected outputs stay text. Pictures are part of the notebook.
    """
    text = page.read_text(encoding="utf-8")
    parts, end = [], 0
    for block in BLOCK.finditer(text):
        before = text[end : block.start()]
        last_mark = re.search(rf"{_MARK.pattern}\Z", before)
        parts += [_prose(before), _cell(block, last_mark["how"] if last_mark else None)]
        end = block.end()
    book = jupytext.reads("".join([*parts, _prose(text[end:])]), fmt="md")
    book.cells.insert(0, nbformat.v4.new_markdown_cell(HEAD.format(url=f"{DOCS_URL}/course/{page.name}")))
    for cell in book.cells:
        cell.metadata.pop("lines_to_next_cell", None)  # of the Markdown that jupytext has read
        for name in re.findall(r"\(attachment:([\w.-]+)\)", cell.source):
            content = base64.b64encode((page.parent / name).read_bytes()).decode("ascii")
            cell.setdefault("attachments", {})[name] = {"image/svg+xml": content}
    return _write(book)


def _prose(text: str) -> str:
    """Text between blocks: formulas as Jupyter reads them, links to the repository, pictures as attachments."""
    text = _PICTURE.sub(r"\1attachment:\2)", FORMULA.sub(r"$\1$", _MARK.sub("", text)))
    return _LINK.sub(lambda link: f"{link[1]}{_url(link[2])}", text)


def _url(path: str) -> str:
    parts: list[str] = []
    for part in f"course/{path}".split("/"):
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join([DOCS_URL, *parts])


def _cell(block: re.Match[str], how: str | None) -> str:
    """A block as Markdown of jupytext, where blocks of Python are cells and all others are text."""
    language, _, options = block[3].strip().partition(" ")
    code = textwrap.dedent(block[4])
    title = re.search(r'title="([^"]*)"', options)
    if language == "math":
        return f"$$\n{code}$$\n"
    if how in ("long", "no"):
        return f"```console\n{code}```\n"
    if title:
        folder = Path(title[1]).parent.as_posix()
        folder_cell = "" if folder == "." else f"```python\n!mkdir -p {folder}\n```\n\n"
        return f"{folder_cell}```python\n%%writefile {title[1]}\n{code}```\n"
    if language in ("sh", "bash"):
        tags = ' tags=["raises-exception"]' if re.search(r"# exit code [1-9]\d*$", code, re.MULTILINE) else ""
        return f"```python{tags}\n%%bash -e\n{code}```\n"
    return f"{block[0]}\n"


def _write(book: nbformat.NotebookNode) -> str:
    book.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    for number, cell in enumerate(book.cells, 1):
        cell.id = f"cell-{number}"
    return str(nbformat.writes(book)) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--course", type=Path, metavar="FOLDER", help="write the notebooks of the course there")
    arguments = parser.parse_args()
    if arguments.course:
        arguments.course.mkdir(parents=True, exist_ok=True)
        for path in sorted(COURSE.glob("*.md")):
            (arguments.course / f"{path.stem}.ipynb").write_text(course_notebook(path), encoding="utf-8")
    else:
        for path in sorted(FOLDER.glob("[0-9]*.py")):
            path.with_suffix(".ipynb").write_text(notebook(path), encoding="utf-8")
