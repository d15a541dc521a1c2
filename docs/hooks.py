"""Formulas of the site as MathML, and the words by which people search for a page; mkdocs.yml names this file.

A formula is written as GitHub reads it too: a block ```math, or $`…`$ in a line. It becomes MathML when the site is
built: no script and no font is fetched to show it. The words of docs/synonyms.yml become tags in the search index.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority

BLOCK = re.compile(r"^( *)(`{3,}|~{3,})([^\n]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"\$`([^`\n]+)`\$")


def with_formulas(markdown: str) -> str:
    """Return a page whose formulas are MathML; other code stays as it is."""
    parts, end = [], 0
    for block in BLOCK.finditer(markdown):
        parts.append(INLINE.sub(lambda formula: convert(formula[1]), markdown[end : block.start()]))
        is_formula = block[3].strip() == "math"
        parts.append(convert(" ".join(block[4].split()), display="block") + "\n" if is_formula else block[0])
        end = block.end()
    return "".join([*parts, INLINE.sub(lambda formula: convert(formula[1]), markdown[end:])])


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with the text of each page."""
    return with_formulas(markdown)


@event_priority(-100)  # after the search plugin has written the index
def on_post_build(config: Any) -> None:
    """Called by mkdocs with its configuration when the site is built."""
    path = Path(config["site_dir"], "search", "search_index.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    entries = {entry["location"]: entry for entry in index["docs"]}
    synonyms = yaml.safe_load(Path(config["docs_dir"], "synonyms.yml").read_text(encoding="utf-8"))
    for place, words in synonyms.items():
        page, _, section = place.partition("#")
        location = page.removesuffix(".md") + ".html" + (f"#{section}" if section else "")
        if location not in entries:
            raise PluginError(f"docs/synonyms.yml: {place}: there is no such page or section")
        entries[location]["tags"] = words
    path.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
