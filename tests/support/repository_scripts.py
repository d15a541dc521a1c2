"""Scripts of the repository as modules: of `benchmarks` and of `docs`, which are no packages."""

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def load_script(path: Path) -> ModuleType:
    """The module of a script, which may import the modules beside it."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def benchmark_script(name: str) -> Any:
    """The module of a script of `benchmarks`."""
    return load_script(ROOT / "benchmarks" / f"{name}.py")
