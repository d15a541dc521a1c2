"""Draw the subpackages of seqpipe and the imports between them, as docs/pictures/rooms.svg.

    python docs/pictures/rooms.py

A subpackage stands above those that it imports, in functions and for type checkers too. An import that others imply is
left out: of `commands -> api -> runs` and `commands -> runs` the first two are drawn.
"""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path

import networkx

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "seqpipe"
WIDTH, BOX, FLOOR = 760, (104, 30), 62  # pixels: of the picture, of a box, from one floor to the next
NO_ROOMS = (
    "__init__",
    "__main__",
    "version",
    "errors",
    "files",
    "console",
    "types",
)  # which each subpackage may import


def imports(path: Path) -> set[str]:
    """Return the modules of seqpipe that a file imports, anywhere in it, as dotted names."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            modules |= {name if is_module(name) else node.module for name in names}
    return {module for module in modules if module.startswith("seqpipe.") and is_module(module)}


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def files() -> networkx.DiGraph:
    """Return the graph of all files of seqpipe, as dotted names, and their imports."""
    graph = networkx.DiGraph()
    for path in sorted(PACKAGE.rglob("*.py")):
        if "templates" not in path.parts:
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            graph.add_edges_from((name, module) for module in sorted(imports(path)) if module != name)
    return graph


def rooms() -> networkx.DiGraph:
    """Return the graph of the subpackages, and of `plugin`, the module for authors of components."""
    graph = networkx.DiGraph()
    for first, second in files().edges:
        ends = [name.split(".")[1] if "." in name else "__init__" for name in (first, second)]
        if ends[0] != ends[1] and not {*ends} & {*NO_ROOMS}:
            graph.add_edge(*ends)
    return graph


def floors(graph: networkx.DiGraph) -> list[list[str]]:
    """Return the subpackages of each floor, the lowest first: each is above all that it imports."""
    return [sorted(floor) for floor in networkx.topological_generations(graph.reverse())]


def drawing() -> str:
    """Return the picture as SVG, with colours that fit a light and a dark page."""
    graph = rooms()
    levels = floors(graph)
    height = FLOOR * len(levels)
    places = {
        name: (WIDTH * (2 * i + 1) / (2 * len(level)), height - FLOOR * (number + 0.5))
        for number, level in enumerate(levels)
        for i, name in enumerate(level)
    }
    drawn = []
    for first, second in sorted(networkx.transitive_reduction(graph).edges):
        (x1, y1), (x2, y2) = places[first], places[second]
        top, bottom, bend = y1 + BOX[1] / 2, y2 - BOX[1] / 2, (y2 - y1) / 2
        curve = f"M{x1:.0f} {top:.0f}C{x1:.0f} {top + bend:.0f} {x2:.0f} {bottom - bend:.0f} {x2:.0f} {bottom:.0f}"
        drawn.append(f'<path d="{curve}" fill="none" stroke="#8a8f98"/>')
    for name, (x, y) in sorted(places.items()):
        box = f'x="{x - BOX[0] / 2:.0f}" y="{y - BOX[1] / 2:.0f}" width="{BOX[0]}" height="{BOX[1]}" rx="5"'
        drawn.append(f'<rect {box} fill="#eef3fb" stroke="#4a6fa5"/>')
        drawn.append(f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle" fill="#1d2733">{escape(name)}</text>')
    style = 'font-family="sans-serif" font-size="13"'
    title = "<title>The subpackages of seqpipe; each imports only those below it</title>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {style}>{title}\n' + "\n".join(
        [*drawn, "</svg>\n"]
    )


if __name__ == "__main__":
    (PACKAGE.parent / "docs" / "pictures" / "rooms.svg").write_text(drawing(), encoding="utf-8")
