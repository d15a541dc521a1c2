"""An OpenAPI document as a page for people: plain HTML that needs no script and nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: API</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
pre {{ overflow-x: auto; padding: .75rem; border: 1px solid #8888; border-radius: .4rem; font-size: .85rem; }}
h2 {{ margin: 2rem 0 0; font: 600 1.05rem ui-monospace, monospace; }}
summary {{ cursor: pointer; }}
</style>
</head>
<body>
<main>
<h1>{title} {version}</h1>
<p>{description} The same for programs: <a href="openapi.json">openapi.json</a>.
A page to try the bundles: <a href=".">here</a>.</p>
"""
_REF = "#/components/schemas/"


def page(document: Mapping[str, Any]) -> str:
    """Every path and method with its request, its responses, and the schemas behind them."""
    head = _HEAD.format(**{key: escape(str(value)) for key, value in document["info"].items()})
    return head + "\n".join(_sections(document)) + "\n</main>\n</body>\n</html>\n"


def _sections(document: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"<h2>{method.upper()} {escape(path)}</h2>"
            yield f"<p>{escape(operation['summary'])}. {escape(operation.get('description', ''))}</p>"
            if "requestBody" in operation:
                (content,) = operation["requestBody"]["content"].values()
                if "example" in content:
                    yield f"<p>Example:</p>{_code(content['example'])}"
                yield _schema("Request", content["schema"], document)
            for status, response in operation["responses"].items():
                if status.startswith("2"):
                    yield _schema("Response", next(iter(response["content"].values()))["schema"], document)
            refused = [
                f"{status} {response['description']}"
                for status, response in operation["responses"].items()
                if not status.startswith("2")
            ]
            if refused:
                yield f"<p>Errors: {escape('; '.join(refused))}.</p>"


def _schema(title: str, schema: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    return f"<details><summary>{title}</summary>{_code(_resolved(schema, document))}</details>"


def _resolved(value: Any, document: Mapping[str, Any]) -> Any:
    """A schema with those that it names in their places."""
    if isinstance(value, Mapping):
        if "$ref" in value:
            return _resolved(document["components"]["schemas"][value["$ref"].removeprefix(_REF)], document)
        return {key: _resolved(part, document) for key, part in value.items()}
    return [_resolved(part, document) for part in value] if isinstance(value, list) else value


def _code(value: Any) -> str:
    return f"<pre><code>{escape(json.dumps(value, indent=1, ensure_ascii=False))}</code></pre>"
