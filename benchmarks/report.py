"""Write RESULTS.md, a summary, and a page for each benchmark from the JSON files in benchmarks/results.

    python benchmarks/report.py           # writes RESULTS.md and results/NAME.md
    python benchmarks/report.py --add runs/results/ner.json   # takes over what a benchmark left there, then writes
    python benchmarks/report.py --check   # fails, naming the files, if a page is not what the JSON says

A benchmark writes its rows to runs/results/NAME.json (`common.record`), where they can be looked at before `--add`
merges them into benchmarks/results/NAME.json. That file also has what only a person can write: the title, the section,
and for each question its heading, the method (`how`), notes, the reasons of what fell short (`short`), and whether the
table, or which rows and columns of it, stand in the summary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import common
from common import HERE, RESULTS

SUMMARY = HERE / "RESULTS.md"
MOST_LINES = 330  # of the summary
SECTIONS = (
    "Beside other tools",
    "Quality on public data sets",
    "The same answers",
    "Serving",
    "Time of commands",
    "Robustness",
    "Shipped pipelines",
    "Source",
    "Other",
)
FACTS = {"date", "commit", "machine", "versions", "command"}
KEYS = {"row", "run", "figures", "unit", "peer", "ratio", "asked", "met", "note"}
QUESTION_KEYS = {"question", "row_name", "how", "notes", "short", "summary", "rows"}
NOTICE = "<!-- Written by `python benchmarks/report.py`; edit the JSON in `benchmarks/results`, not this page. -->"
HEAD = f"""# Results

{NOTICE}

Each table answers one question. The line below it names the command, the machine, the date and the commit, and links to
all figures, notes and versions. A ratio above 1 is in favour of seqpipe, and **slower** marks one below 1. To measure
again, run the command, look at what it wrote to `runs/results`, and take it over with
`python benchmarks/report.py --add runs/results/NAME.json`. Data sets stay outside the repository: `--data FOLDER` or
the variable `SEQPIPE_DATA` names the folder that holds them, each in a folder of its own such as `ncbi_disease/`.
"""

Content = Mapping[str, Any]


def load(folder: Path = RESULTS) -> dict[str, Content]:
    """The content of each file by its name, in the order of sections and titles; refuses a file with a fault."""
    contents = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    problems = [f"{name}.json: {problem}" for name, content in contents.items() for problem in faults(content)]
    if problems:
        raise SystemExit("\n".join(problems))
    return dict(sorted(contents.items(), key=lambda item: (SECTIONS.index(item[1]["section"]), item[1]["title"])))


def faults(content: Content) -> Iterator[str]:
    """The reasons why a file cannot be reported."""
    if content.get("section") not in SECTIONS or not content.get("title"):
        yield f"it needs a title, and a section of {', '.join(SECTIONS)}"
    for name, run in content["runs"].items():
        if {*run} != FACTS:
            yield f"run {name}: it must have {', '.join(sorted(FACTS))}"
    for name, question in content["questions"].items():
        rows = question["rows"]
        if unknown := {*question} - QUESTION_KEYS:
            yield f"question {name}: unknown {', '.join(sorted(unknown))}"
        if len({row["row"] for row in rows}) < len(rows):
            yield f"question {name}: two rows have one name"
        for row in rows:
            if row.get("run") not in content["runs"] or {*row} - KEYS:
                yield f"question {name}, row {row['row']}: its run is missing, or it has other keys than {sorted(KEYS)}"
        if any(row.get("met") is False for row in rows) and not question.get("short"):
            yield f"question {name}: a row falls short; `short` must say why"
        chosen = question.get("summary", {})
        if isinstance(chosen, dict) and (missing := {*chosen.get("rows", ())} - {row["row"] for row in rows}):
            yield f"question {name}: the summary names rows that are not there: {', '.join(sorted(missing))}"


def table(question: Content, rows: Sequence[Content], columns: Sequence[str] | None) -> list[str]:
    """The lines of a Markdown table: the figures of each row, then peer, ratio, what was asked, and a note.

    `columns` names the figures that are shown, and `note` if notes are; None shows all. A summary, with columns, marks
    what is slower than its peer, not what is short of a figure that was asked for.
    """
    every = list(dict.fromkeys(what for row in rows for what in row.get("figures", {})))
    whats = [what for what in every if columns is None or what in columns]
    places = {what: _places([row.get("figures", {}).get(what) for row in rows]) for what in whats}
    keys = ("peer", "ratio", *(["asked"] * (columns is None)), *(["note"] * (columns is None or "note" in columns)))
    extra = [key for key in keys if any(row.get(key) is not None for row in rows)]
    if columns is None and any(row.get("met") is False for row in rows) and "asked" not in extra:
        extra.append("asked")
    cells = [[question.get("row_name", ""), *whats, *extra]]
    for row in rows:
        unit = f" {row['unit']}" if row.get("unit") else ""
        line = [row["row"]]
        for what in whats:
            figure = shown(row.get("figures", {}).get(what), places[what])
            line.append(figure + unit * bool(figure))
        for key in extra:
            cell = _ratio(row.get(key)) if key == "ratio" else shown(row.get(key))
            if key == "asked" and row.get("met") is False:
                cell += f"{', ' * bool(cell)}**short**"
            if key == "ratio" and columns is not None and is_slower(row.get("ratio")):
                cell += ", **slower**"
            line.append(cell)
        cells.append(line)
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in cells]
    return [re.sub(r" {2,}", " ", line) for line in [lines[0], "|" + "---|" * len(cells[0]), *lines[1:]]]


def is_slower(ratio: Any) -> bool:
    """Whether a ratio, or each of several, is below 1."""
    highest = max(ratio) if isinstance(ratio, list) else ratio
    return isinstance(highest, (int, float)) and highest < 1


def shown(value: Any, places: int | None = None) -> str:
    """A figure as a table has it: thousands apart, as many decimals as the column, several with commas between."""
    if isinstance(value, list):
        return ", ".join(shown(each, places) for each in value)
    if isinstance(value, float):
        return f"{value:,.{_decimals(value) if places is None else max(places, _decimals(value))}f}"
    return f"{value:,}" if isinstance(value, int) else value or ""


def _decimals(value: float) -> int:
    return len(f"{value:.10f}".rstrip("0").partition(".")[2])


def _places(values: Sequence[Any]) -> int:
    """Decimals of a column: the most that one of its figures needs."""
    flat = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return max((_decimals(each) for each in flat if isinstance(each, float)), default=0)


def _ratio(value: Any) -> str:
    if isinstance(value, list):
        return f"{_ratio(value[0])} to {_ratio(value[1])}"
    if isinstance(value, (int, float)):
        return f"{value:.{max(1, _decimals(value))}f}×"
    return value or ""


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _heading(key: str, question: Content) -> str:
    return str(question.get("question") or key.replace("_", " ").capitalize())


def page(name: str, content: Content) -> str:
    """The page of one benchmark: every question with its table, notes and where the figures come from."""
    lines = [f"# {content['title']}", "", f"{NOTICE}", "", "[Summary of all benchmarks](../RESULTS.md)", ""]
    for key, question in content["questions"].items():
        lines += [f"## {_heading(key, question)}", ""]
        if question.get("how"):
            lines += [question["how"], ""]
        lines += [*table(question, question["rows"], None), ""]
        notes = [*question.get("notes", ()), *(f"**Short**: {reason}" for reason in question.get("short", ()))]
        lines += [*(f"- {note}" for note in notes), *([""] * bool(notes))]
        used: dict[str, list[str]] = {}
        for row in question["rows"]:
            used.setdefault(row["run"], []).append(row["row"])
        for run, rows in used.items():
            facts = content["runs"][run]
            where = f"{facts['machine']}; {facts['versions']}; {facts['date']}, commit {facts['commit']}"
            which = f". Rows: {'; '.join(rows)}" if len(used) > 1 else ""
            lines += [f"{_code(facts['command'])}: {where}{which}.", ""]
    return "\n".join(lines)


def _code(command: str) -> str:
    """The command as code; one that is described in words keeps its own code spans."""
    return command if "`" in command else f"`{command}`"


def summary(contents: Mapping[str, Content]) -> str:
    """RESULTS.md: the tables that a question chooses for it, and an index of all pages."""
    lines = [HEAD]
    sections: dict[str, list[str]] = {}
    for name, content in contents.items():
        for key, question in content["questions"].items():
            if not (chosen := question.get("summary")):
                continue
            names = chosen.get("rows") if isinstance(chosen, dict) else None
            columns = chosen.get("columns") if isinstance(chosen, dict) else None
            if columns is None:  # all figures, but no notes
                columns = [what for row in question["rows"] for what in row.get("figures", {})]
            rows = [row for row in question["rows"] if names is None or row["row"] in names]
            heading = _heading(key, question)
            link = f"[all figures](results/{name}.md#{anchor(heading)})"
            block = [f"### {heading}"]
            measured: dict[tuple[str, str], list[Content]] = {}
            for row in rows:
                run = content["runs"][row["run"]]
                measured.setdefault((run["machine"], run["date"]), []).append(row)
            for (machine, date), together in measured.items():
                runs = [content["runs"][run] for run in dict.fromkeys(row["run"] for row in together)]
                commands, commits = (dict.fromkeys(run[fact] for run in runs) for fact in ("command", "commit"))
                origin = [*map(_code, commands), machine, date, ", ".join(commits), link]
                block += [*table(question, together, columns), "", "; ".join(origin), ""]
            sections.setdefault(content["section"], []).extend(block)
    for section in SECTIONS:
        if section in sections:
            lines += [f"## {section}", *sections[section]]
    lines += ["## All pages", ""]
    for section in SECTIONS:
        links = [f"[{c['title']}](results/{name}.md)" for name, c in contents.items() if c["section"] == section]
        if links:
            lines.append(f"- {section}: {', '.join(links)}")
    return "\n".join([*lines, ""])


def pages(contents: Mapping[str, Content]) -> dict[Path, str]:
    """The text of every generated file."""
    texts = {RESULTS / f"{name}.md": page(name, content) for name, content in contents.items()}
    return {SUMMARY: summary(contents), **texts}


def stale(contents: Mapping[str, Content]) -> list[str]:
    """The generated files that are missing or differ, or that no JSON stands behind."""
    texts = pages(contents)
    differing = [path for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text]
    return [path.relative_to(HERE).as_posix() for path in [*differing, *({*RESULTS.glob("*.md")} - {*texts})]]


def add(paths: Sequence[Path]) -> None:
    """Merge the rows of benchmarks that were run into the files of results."""
    for path in paths:
        place = RESULTS / path.name
        new = json.loads(path.read_text(encoding="utf-8"))
        empty = {"title": path.stem.replace("_", " ").capitalize(), "section": "Other", "runs": {}, "questions": {}}
        known = json.loads(place.read_text(encoding="utf-8")) if place.exists() else empty
        common.write_json(place, common.merged(known, new))
        print(f"{place.relative_to(HERE.parent)}: {sum(len(q['rows']) for q in new['questions'].values())} rows added")


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--add", nargs="+", type=Path, default=[], metavar="FILE", help="files of runs/results")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not what the JSON says")
    arguments = parser.parse_args()
    add(arguments.add)
    contents = load()
    if arguments.check:
        if differing := stale(contents):
            raise SystemExit(f"run `python benchmarks/report.py`; it would change: {', '.join(differing)}")
        return
    for path, text in pages(contents).items():
        path.write_text(text, encoding="utf-8")
    count = SUMMARY.read_text(encoding="utf-8").count("\n")
    if count > MOST_LINES:
        raise SystemExit(f"RESULTS.md has {count} lines, {MOST_LINES} at most: choose fewer rows for the summary")


if __name__ == "__main__":
    main()
