"""The search of the built site in Python: the ranking of Material's worker over its index, by the package lunr.

The worker (material/templates/assets/javascripts/workers) searches each word as a prefix in the title, the text and the
tags of every section, without stemming and without regard to its length (b = 0). It favours the top of a page and
sections that have all words, and shows each page once. What it does for quotation marks and Chinese is left out.
"""

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest


class SiteSearch:
    """The search of a built site."""

    def __init__(self, site: Path):
        builder = pytest.importorskip("lunr.builder").Builder()
        self.is_word = pytest.importorskip("lunr.stop_word_filter").stop_word_filter
        content = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
        assert content["config"]["pipeline"] == ["stopWordFilter"]
        builder.ref("location")
        builder.b(0)
        builder.pipeline.add(self.is_word)
        for field, options in content["config"]["fields"].items():
            builder.field(field, boost=options["boost"])
        for entry in content["docs"]:
            parts = {
                "title": _text(entry["title"]),
                "text": _text(entry["text"]),
                "tags": " ".join(entry.get("tags", ())),
            }
            builder.add({"location": entry["location"], **parts}, {"boost": entry.get("boost", 1)})
        self.index = builder.build()

    def pages(self, query: str) -> list[str]:
        """The pages that a query finds, the best first."""
        clauses: list[str] = []
        for word in query.lower().split():
            parts = [part for part in word.split("-") if part]
            # Of a hyphenated word only the last part is a prefix, and all parts count as often as there are parts.
            clauses += [*parts[:-1], f"{parts[-1]}*"] * len(parts)
        words = {clause.rstrip("*") for clause in clauses}
        pages: list[tuple[float, str]] = []
        for result in self.index.search(" ".join(clauses)):
            terms = result["match_data"].metadata
            matched = {word for word in words if any(term.startswith(word) for term in terms)}
            expected = {word for word in words if self.is_word(word)} | matched
            top = "#" not in result["ref"]
            score = result["score"] * (1 + (top + len(matched) / len(expected)) ** 2)
            pages.append((score, result["ref"].partition("#")[0]))
        pages.sort(key=lambda row: -row[0])
        return list(dict.fromkeys(page for _, page in pages))


def _text(content: Any) -> str:
    """The text of HTML, whose tags the worker does not read either."""
    return html.unescape(re.sub(r"<[^>]*>", " ", content))
