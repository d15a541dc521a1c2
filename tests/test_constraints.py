"""The tested set of versions installs on every Python that the project names."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]


def test_the_pinned_versions_run_on_the_oldest_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = re.fullmatch(r">=(3\.\d+)", project["requires-python"])
    assert oldest
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    checked, refused = 0, []
    for name in pins:
        try:
            needs = distribution(name).metadata["Requires-Python"]
        except PackageNotFoundError:  # another platform's
            continue
        checked += 1
        if f"{oldest[1]}.0" not in SpecifierSet(needs or ""):
            refused.append(f"{name} {needs}")
    assert checked > len(pins) // 2
    assert not refused
