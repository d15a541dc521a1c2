"""Syntax errors of a YAML file in plain words, each with its place and what to do."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from seqpipe.errors import Problem

_CURES: Sequence[
    tuple[str, str, bool]
] = (  # a part of PyYAML's message; what to say; whether its first mark is the place
    ("while scanning an alias", "a value cannot start with '*'; put it in quotes", True),
    ("while scanning an anchor", "a value cannot start with '&'; put it in quotes", True),
    ("scanning a quoted scalar found unexpected", "this quote is never closed; add the closing quote", True),
    ("found character '\\t' that cannot", "a tab cannot stand here; indent with spaces", False),
    ("found character '%' that cannot", "a value cannot start with '%'; put it in quotes", False),
    ("found character '@' that cannot", "a value cannot start with '@'; put it in quotes", False),
    ("found character '`' that cannot", "a value cannot start with '`'; put it in quotes", False),
    ("expected ',' or ']', but got '<stream end>'", "this '[' is never closed; add the ']'", True),
    ("expected ',' or '}', but got '<stream end>'", "this '{' is never closed; add the '}'", True),
    ("expected ',' or ']'", "a ',' or ']' is missing before this", False),
    ("expected ',' or '}'", "a ',' or '}' is missing before this", False),
    ("but found ']'", "nothing opened this ']'; delete it", False),
    ("but found '}'", "nothing opened this '}'; delete it", False),
    (
        "mapping values are not allowed",
        "a second ':' in one value, or a line indented too far; put text with ': ' in quotes",
        False,
    ),
    ("expected <block end>", "this line does not fit those above it; check its indentation", False),
    ("could not find expected ':'", "a key without a value; write 'key: value'", True),
    ("unknown escape character", "no such escape in double quotes; use single quotes, or double the backslash", False),
    (
        "expected escape sequence",
        "this escape in double quotes is not complete; use single quotes, or double the backslash",
        False,
    ),
    ("expected '<document start>'", "text after the end of the document; delete the '...' line", False),
    ("expected the node content, but found '<stream end>'", "the text ends here, with a bracket still open", False),
    ("expected the node content", "a value is missing before this", False),
)


def syntax_problem(error: yaml.MarkedYAMLError, file: str) -> Problem:
    said = f"{error.context or ''} {error.problem or ''}".strip()
    at_context = False
    for part, cure, at_context_then in _CURES:
        if part in said:
            said, at_context = cure, at_context_then
            break
    mark = (error.context_mark if at_context else None) or error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    return Problem(file, line, column, "", said)
