"""Formulas of the pages as MathML, made when the site is built: no script and no font is fetched to show them.

A formula is written as GitHub reads it too: a block ```math, or $`…`$ in a line. mkdocs.yml names this file under `hooks`.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

CODE = re.compile(r"^( *)(`{3,}|~{3,})(?!math\b)[^\n]*\n.*?^\1\2 *$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"\$`([^`\n]+)`\$")


def with_formulas(markdown: str) -> str:
    """Return a page whose formulas are MathML; code blocks stay as they are."""
    parts, end = [], 0
    for code in CODE.finditer(markdown):
        parts += [_formulas(markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _formulas(markdown[end:])])


def _formulas(text: str) -> str:
    text = BLOCK.sub(lambda block: f"\n{convert(' '.join(block[1].split()), display='block')}\n", text)
    return INLINE.sub(lambda formula: convert(formula[1]), text)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with the text of each page."""
    return with_formulas(markdown)
