"""Write the notebooks of this folder from their scripts: `python examples/notebooks/make.py`."""

from pathlib import Path

import jupytext
import nbformat

FOLDER = Path(__file__).parent
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def notebook(script: Path) -> str:
    """Return the notebook of a script in the percent format of jupytext, without outputs; the same bytes each time."""
    book = jupytext.read(script)
    book.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    for number, cell in enumerate(book.cells, 1):
        cell.id = f"cell-{number}"
    return str(nbformat.writes(book)) + "\n"


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("[0-9]*.py")):
        path.with_suffix(".ipynb").write_text(notebook(path), encoding="utf-8")
