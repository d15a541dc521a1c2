"""The program of examples/node in a copy of its folder, where what it needs is installed."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import doc_pages
import pytest
from second_runtime import matches_golden

NODE = doc_pages.ROOT / "examples/node"
DRIVER = """
import { open } from "./bundle.mjs";
const [path, asked] = process.argv.slice(2), bundle = await open(path);
const { readFileSync, writeFileSync } = await import("node:fs");
const told = [];
for (const [records, options] of JSON.parse(readFileSync(asked, "utf8")))
  told.push(await bundle.answers(records, options));
writeFileSync(asked + ".answers", JSON.stringify(told));
"""


def install_node_program(folder: Path) -> Path:
    """Copy the example into a folder and install what it needs; skips the test without Node.js and npm."""
    if shutil.which("npm") is None:
        pytest.skip("needs Node.js and npm")
    shutil.copytree(NODE, folder, ignore=shutil.ignore_patterns("node_modules"), dirs_exist_ok=True)
    (folder / "driver.mjs").write_text(DRIVER)
    shell(node_lines("npm install"), folder)
    return folder


def node_lines(command: str) -> str:
    """The shell block of its README that begins with this command."""
    page = doc_pages.code_blocks((NODE / "README.md").read_text(encoding="utf-8"))
    (found,) = [block.code for block in page if block.language == "sh" and block.code.startswith(command)]
    return found


def shell(lines: str, folder: Path) -> str:
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", lines], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_node(folder: Path, path: Path, asked: list[Any]) -> Any:
    (folder / "asked.json").write_text(json.dumps(asked))
    shell(f"node driver.mjs '{path}' asked.json", folder)
    return json.loads((folder / "asked.json.answers").read_text())


def alike(one: Any, other: Any) -> bool:
    """As golden examples are compared; JavaScript writes the score 1.0 as 1."""
    if isinstance(one, float) and isinstance(other, int) and not isinstance(other, bool):
        other = float(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return matches_golden(one, other)
