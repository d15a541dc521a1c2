"""The subpackages of seqpipe: their imports go one way and in no circle, and the guide for contributors shows them."""

import re
import sys
import tomllib
from pathlib import Path

import networkx

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "docs" / "pictures"))

import rooms  # noqa: E402


def order() -> list[str]:
    """The floors of `lint-imports`, the highest first; imports in functions and for type checkers keep it too."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    return next(contract["layers"] for contract in contracts if contract["type"] == "layers")


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = rooms.files()
    assert len(graph.edges) > 1_000
    assert [circle for circle in networkx.strongly_connected_components(graph) if len(circle) > 1] == []
    graph.add_edge("seqpipe.errors", "seqpipe.files")  # which imports it
    assert [len(circle) for circle in networkx.strongly_connected_components(graph) if len(circle) > 1] == [2]


def test_no_subpackage_imports_one_above_it() -> None:
    floors = {name: number for number, floor in enumerate(order()) for name in floor.split(" | ")}
    upward = [(first, second) for first, second in rooms.rooms().edges if floors[first] >= floors[second]]
    assert upward == []


def test_nothing_below_imports_the_python_interface() -> None:
    assert {first for first, second in rooms.rooms().edges if second == "api"} <= {"commands"}


def test_the_guide_shows_every_subpackage_and_the_picture_that_their_imports_draw() -> None:
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)/` \|", page.partition("| subpackage |")[2], re.MULTILINE)
    names = [name for floor in order() for name in floor.split(" | ")]
    assert listed == [name for name in names if (ROOT / "seqpipe" / name).is_dir()]
    assert (ROOT / "docs" / "pictures" / "rooms.svg").read_text(encoding="utf-8") == rooms.drawing()
    assert "pictures/rooms.svg" in page
