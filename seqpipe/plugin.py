"""All names for authors of components, in one flat module: `from seqpipe.plugin import DataError, Size, hookimpl`.

The names are listed once, in `plugin.pyi` beside this file. Each is imported at first use, so that plugins are listed
without NumPy, and readers and tokenizers run without PyTorch.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

# Type checkers and editors read the stub, since they cannot follow a module's `__getattr__`. A table would repeat the
# stub; parsing it takes half a millisecond.
SOURCES = {
    alias.name: statement.module
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, ast.ImportFrom) and statement.module
    for alias in statement.names
}
__all__ = sorted(SOURCES)


def __getattr__(name: str) -> Any:
    if name not in SOURCES:
        raise AttributeError(f"module 'seqpipe.plugin' has no attribute {name!r}")
    owner = import_module(SOURCES[name])
    value = getattr(owner, name) if hasattr(owner, name) else import_module(f"{owner.__name__}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
