"""Formulas of the site as MathML, notebooks of the course, and the words by which people search for a page.

mkdocs.yml names this file. A formula is written as GitHub reads it too: a block ```math, or $`…`$ in a line. It becomes
MathML when the site is built: no script and no font is fetched to show it. Each page of the course has a link to its
notebook, which is written beside it. The words of docs/synonyms.yml become tags in the search index, and so do the kind
and the name of each component on its page.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import yaml
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority

NOTEBOOKS = Path(__file__).resolve().parents[1] / "examples" / "notebooks" / "make.py"
spec = importlib.util.spec_from_file_location("notebooks", NOTEBOOKS)
assert spec
assert spec.loader
notebooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(notebooks)
COURSE_BOOST = 0.4  # of the course in the search, so that the reference pages stay first
COMPONENT_BOOST = 0.4  # of the pages of components, so that the page of a task stays before those of its components


def with_formulas(markdown: str) -> str:
    """Return a page whose formulas are MathML; other code stays as it is."""

    def inline(text: str) -> str:
        # In a span, since Markdown takes a line that begins with <math> for a block.
        return notebooks.FORMULA.sub(lambda formula: f"<span>{convert(formula[1])}</span>", text)

    parts, end = [], 0
    for block in notebooks.BLOCK.finditer(markdown):
        parts.append(inline(markdown[end : block.start()]))
        is_formula = block[3].strip() == "math"
        parts.append(convert(" ".join(block[4].split()), display="block") + "\n" if is_formula else block[0])
        end = block.end()
    return "".join([*parts, inline(markdown[end:])])


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with the text of each page."""
    path = Path(page.file.src_uri)
    if path.is_relative_to("reference/components"):
        page.meta["search"] = {"boost": COMPONENT_BOOST}
    if path.parent.name == "course":
        page.meta["search"] = {"boost": COURSE_BOOST}
        title, text = markdown.split("\n", 1)
        # As HTML, since mkdocs checks the links of Markdown before the notebook is there.
        link = f'<a href="{path.stem}.ipynb" download>Notebook</a> of this page, for Jupyter.'
        markdown = f"{title}\n\n{link}\n{text}"
    return with_formulas(markdown)


@event_priority(-100)  # after the search plugin has written the index
def on_post_build(config: Any) -> None:
    """Called by mkdocs with its configuration when the site is built."""
    for page in Path(config["docs_dir"], "course").glob("*.md"):
        path = Path(config["site_dir"], "course", f"{page.stem}.ipynb")
        path.write_text(notebooks.course_notebook(page), encoding="utf-8")
    path = Path(config["site_dir"], "search", "search_index.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    entries = {entry["location"]: entry for entry in index["docs"]}
    components = Path(config["docs_dir"], "reference", "components")
    for page in components.glob("*/*.md"):
        location = f"reference/components/{page.parent.name}/{page.stem}.html"
        entries[location]["tags"] = [f"{page.parent.name.removesuffix('s')} {page.stem}"]
    synonyms = yaml.safe_load(Path(config["docs_dir"], "synonyms.yml").read_text(encoding="utf-8"))
    for place, words in synonyms.items():
        page, _, section = place.partition("#")
        location = page.removesuffix(".md") + ".html" + (f"#{section}" if section else "")
        if location not in entries:
            raise PluginError(f"docs/synonyms.yml: {place}: there is no such page or section")
        entries[location]["tags"] = words
    path.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
