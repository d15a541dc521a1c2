"""The table of example pipelines, the mutations that tests have to catch, the results, and where scripts find data."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from repository_scripts import ROOT, benchmark_script

from seqpipe.config.loader import load_config
from seqpipe.config.signature import construct

pytestmark = pytest.mark.nightly("benchmarks/*", "README.md", "tests/benchmarks/*")

TOY = """
def smallest(numbers, limit):
    found = []
    for number in numbers:
        if number < limit:
            found.append(min(number, limit - 1))
    return found
"""
TEST = """
from seqpipe.toy import smallest

def test_it():
    assert smallest([3, 1, 2], 3) == [1, 2]
"""


chart, common, mutations, pipelines, report = map(
    benchmark_script, ("chart", "common", "mutations", "pipelines", "report")
)


def test_every_pipeline_has_a_row_that_says_what_was_measured_and_counted() -> None:
    text = pipelines.PAGE.read_text(encoding="utf-8")
    assert pipelines.table(text, pipelines.records()) == text, "run `python benchmarks/pipelines.py --only`"
    rows = [match[1] for line in text.split("\n") if (match := pipelines.ROW.match(line))]
    assert sorted(rows) == sorted(path.stem for path in (ROOT / "pipelines").glob("*.yaml"))
    assert pipelines.with_start("elmo-tagger") == ["bilm", "elmo-tagger"]


def test_the_readme_has_the_score_of_its_example_that_was_measured() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (score,) = re.findall(r"This model's (.*) is measured on generated data", text)
    assert score == pipelines.shown("ner", pipelines.records()["ner"]["scores"]["test"])


# For each row of the README: the file of results, the question, row and column in it, and how the README shows it.
REAL_DATA = {
    "NCBI-disease": ("ner", "quality", "NCBI-disease, mean of three seeds", "PyTorch", "{:.1f} F1"),
    "CLINC150, 150 intents": ("classify", "fine_tuned", "clinc150", "bundle", "{:.1f} % accuracy"),
    "tinyshakespeare": ("language_models", "quality", "shakespeare", "measured", "{:.2f} nats a character"),
    "SciTLDR": ("copying", "scitldr", "pointer-generator", "beam 4", "ROUGE {:.1f} / {:.1f} / {:.1f}"),
    "small_parallel_enja": ("seq2seq", "quality", "small_parallel_enja", "test, beam 5", "{:.1f} BLEU"),
}


def test_the_readme_has_the_scores_on_real_data_that_were_measured() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Scores on real data")[2]
    shown = dict(re.findall(r"^\| \[.*\]\(.*\) \| (.*) \| (.*) \|$", text, re.MULTILINE))
    measured = {}
    for data, (name, question, first, column, form) in REAL_DATA.items():
        results = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
        (row,) = [row for row in results["questions"][question]["rows"] if row["row"].startswith(first)]
        measured[data] = form.format(*map(float, str(row["figures"][column]).split(" / ")))
    assert shown == measured


def test_a_row_is_stale_if_its_data_changed_or_it_says_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = "| [`intent-zh.yaml`](pipelines/intent-zh.yaml) | intents | 1.0 % accuracy | | | 9 s |"
    record = {"scores": {"test": {"accuracy": 0.934}}, "seconds": 16.2, "date": "2026-11-23"}
    monkeypatch.setattr(pipelines, "PAGE", tmp_path / "examples.md")
    for made_from, text, message in (
        ("0" * 64, row, "its YAML or data changed"),
        (pipelines.made_from("intent-zh"), row, "the page says something else"),
        (pipelines.made_from("intent-zh"), None, None),
    ):
        known = {"intent-zh": {**record, "made_from": made_from}}
        pipelines.PAGE.write_text(text or pipelines.expected(row, known))
        found = [line for line in pipelines.stale(known) if line.startswith("intent-zh:")]
        assert [message in line for line in found] == [True] * bool(message)
    assert "93.4 % accuracy | | 0 % of texts | 16 s of one core |" in pipelines.PAGE.read_text()


def toy(folder: Path, test: str = TEST, code: str = TOY) -> Path:
    for name, text in (("seqpipe/__init__.py", ""), ("seqpipe/toy.py", code), ("tests/test_toy.py", test)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "plugins").mkdir(exist_ok=True)
    return folder


def changes(found: list[Any]) -> set[tuple[str, str]]:
    return {(one.before, one.after) for one in found}


def test_each_operator_changes_what_it_says(tmp_path: Path) -> None:
    root = toy(tmp_path)
    found = [*mutations.mutations(root / "seqpipe" / "toy.py", root)]
    assert changes(found) == {
        ("number < limit", "number <= limit"),
        ("number < limit", "not number < limit"),
        ("1", "2"),
        ("1", "0"),
        ("found.append(min(number, limit - 1))", "pass"),
        ("min(number, limit - 1)", "min(limit - 1, number)"),
    }
    assert {one.operator for one in found} == {*mutations.OPERATORS}
    for one in found:
        text = (root / one.path).read_text()
        assert " ".join(text[one.start : one.end].split()) == one.before


def test_what_is_drawn_follows_from_the_seed_and_from_names_not_from_lines(tmp_path: Path) -> None:
    one = mutations.draw(toy(tmp_path / "one"), seed=1, count=5)
    other = mutations.draw(toy(tmp_path / "other", code=f"import os\n\n\nGREATEST = 9\n{TOY}"), seed=1, count=5)
    assert [mutation.key for mutation in one] == [mutation.key for mutation in other]
    assert len({mutation.operator for mutation in one}) == 5
    drawn = {tuple(mutation.key for mutation in mutations.draw(tmp_path / "one", seed, 5)) for seed in range(9)}
    assert len(drawn) > 1


def test_a_mutation_is_caught_by_a_test_that_fails_and_taken_back(tmp_path: Path) -> None:
    root = toy(tmp_path)
    found = {one.after: one for one in mutations.mutations(root / "seqpipe" / "toy.py", root)}
    assert mutations.nearest_tests(found["pass"], root) == ["tests/test_toy.py"]
    tried = [mutations.try_mutation(found[after], root, 60) for after in ("number <= limit", "min(limit - 1, number)")]
    outcomes = [(one.name, one.detail) for one in mutations.confirm(tried, root)]
    assert outcomes == [("caught", "tests/test_toy.py::test_it"), ("survived", "tests/test_toy.py")]
    assert (root / "seqpipe" / "toy.py").read_text() == TOY


def test_a_test_that_fails_anyway_catches_nothing(tmp_path: Path) -> None:
    root = toy(tmp_path, test=TEST.replace("[1, 2]", "[7]"))
    mutation = mutations.draw(root, seed=1, count=1)[0]
    (outcome,) = mutations.confirm([mutations.try_mutation(mutation, root, 60)], root)
    assert (outcome.name, outcome.detail) == ("survived", "tests/test_toy.py::test_it fails without it too")


def results(**question: Any) -> dict[str, Any]:
    """The content of a file of results with one question."""
    facts = {"date": "2026-11-25", "commit": "0badcafe", "machine": "an abacus", "versions": "", "command": "count"}
    rows = [
        {"row": "ours", "run": "a", "figures": {"texts/s": 1200, "F1": 90.5}, "peer": "theirs", "ratio": [1.5, 2.0]},
        {"row": "small", "run": "a", "figures": {"texts/s": 30, "F1": 71.25}, "asked": "1", "met": False},
    ]
    return {
        "title": "Counting",
        "section": "Other",
        "runs": {"a": facts},
        "questions": {"speed": {"question": "How fast?", "short": ["it is slow"], "rows": rows, **question}},
    }


def test_results_and_chart_are_what_the_json_says() -> None:
    contents = report.load()
    assert report.stale(contents) == [], "run `python benchmarks/report.py`"
    assert report.SUMMARY.read_text(encoding="utf-8").count("\n") <= report.MOST_LINES
    assert chart.PICTURE.read_text(encoding="utf-8") == chart.chart(chart.bars(contents)), (
        "run `python benchmarks/chart.py`"
    )


def test_the_chart_draws_a_slower_tool_to_the_right_of_one_and_a_faster_one_to_the_left() -> None:
    bars = [chart.Bar("faster", 0.25, 0.25), chart.Bar("range", 0.9, 1.5), chart.Bar("slower", 4.0, 4.0)]
    svg = chart.chart({"tools": bars})
    drawn = re.findall(r'<rect class="(faster|slower)" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg)
    one = chart.x_of(1)
    ends = [(style, float(x), float(x) + float(width)) for style, x, width in drawn]
    assert [style for style, *_ in ends] == ["slower", "slower", "faster"]
    assert [end == pytest.approx(one, abs=0.2) for _, _, end in ends] == [True, True, False]
    assert ends[2][1] == pytest.approx(one, abs=0.2)
    assert one - ends[0][1] == pytest.approx(ends[2][2] - one, abs=0.2)  # 1/4 is as far from 1 as 4


def test_links_into_the_results_resolve() -> None:
    texts = {path.resolve(): text for path, text in report.pages(report.load()).items()}
    links = [(path, link) for path, text in texts.items() for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    absolute = re.compile(r"https://github\.com/seqpipe/seqpipe/blob/main/(benchmarks/[^)\s]+)")
    links += [(ROOT / "README.md", link) for page in pages for link in absolute.findall(page.read_text("utf-8"))]
    assert len(links) > 50
    for path, link in links:
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve()
        assert file.exists(), f"{path}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert [report.anchor(heading) for heading in headings].count(anchor) == 1, f"{path}: {link}"


def test_a_page_shows_figures_peer_ratio_what_was_asked_and_the_machine() -> None:
    text = report.page("counting", results())
    for line in (
        "| | texts/s | F1 | peer | ratio | asked |",
        "| ours | 1,200 | 90.50 | theirs | 1.5× to 2.0× | |",
        "| small | 30 | 71.25 | | | 1, **short** |",
        "- **Short**: it is slow",
        "`count`: an abacus; ; 2026-11-25, commit 0badcafe.",
    ):
        assert line in text.splitlines()
    summary = report.summary({"counting": results(summary={"rows": ["ours"], "columns": ["F1"]})})
    assert "| ours | 90.5 | theirs | 1.5× to 2.0× |" in summary.splitlines()
    assert "How fast?" not in report.summary({"counting": results()})


def test_the_summary_marks_what_is_slower_and_has_one_machine_and_date_for_each_table() -> None:
    content = results(summary=True)
    later = {**content["runs"]["a"], "date": "2026-11-26"}
    content["runs"]["b"] = later
    for name, ratio, run in (("slow", 0.9, "a"), ("range", [0.9, 1.1], "b"), ("slow too", [0.8, 0.9], "b")):
        content["questions"]["speed"]["rows"].append({"row": name, "run": run, "peer": "theirs", "ratio": ratio})
    lines = report.summary({"counting": content}).splitlines()
    marked = [line.split(" | ")[0] for line in lines if "**slower**" in line and line.startswith("|")]
    assert marked == ["| slow", "| slow too"]
    assert [line for line in lines if "asked" in line or "**short**" in line.lower()] == []
    assert [sum(date in line for line in lines) for date in ("2026-11-25", "2026-11-26")] == [1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"short": []}, "a row falls short; `short` must say why"),
        ({"summary": {"rows": ["ours", "others"]}}, "the summary names rows that are not there: others"),
        ({"rows": [{"row": "x", "run": "b", "figures": {}}]}, "row x: its run is missing"),
        ({"rows": [{"row": "x", "run": "a", "figure": 3}]}, "row x: its run is missing, or it has other keys"),
        ({"rows": [{"row": "x", "run": "a"}] * 2}, "two rows have one name"),
        ({"answer": 42}, "unknown answer"),
    ],
)
def test_a_fault_in_a_file_of_results_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "counting.json").write_text(json.dumps(results(**change)), encoding="utf-8")
    with pytest.raises(SystemExit) as error:
        report.load(tmp_path)
    assert "counting.json: question speed" in str(error.value)
    assert message in str(error.value)


def test_rows_that_a_benchmark_records_replace_older_ones_and_keep_what_people_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = sys.modules["common"]
    monkeypatch.setattr(common, "RECORDED", tmp_path / "recorded")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "HERE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["/x/benchmarks/count.py", "--data", "/home/somebody/data", "--seeds", "3"])
    common.write_json(tmp_path / "counting.json", results())
    common.record("counting", "speed", [{"row": "ours", "figures": {"texts/s": 1300}}], ["pytest"], "abacus 2.0")
    common.record("counting", "speed", [{"row": "new", "figures": {"texts/s": 7}}])
    common.record("counting", "memory", [{"row": "ours", "figures": {"MB": 5}}])
    report.add([tmp_path / "recorded" / "counting.json"])
    added = report.load(tmp_path)["counting"]
    speed = added["questions"]["speed"]
    assert (speed["question"], speed["short"], added["title"]) == ("How fast?", ["it is slow"], "Counting")
    assert [row["row"] for row in speed["rows"]] == ["ours", "small", "new"]
    assert speed["rows"][0]["figures"] == {"texts/s": 1300}
    assert [row["row"] for row in added["questions"]["memory"]["rows"]] == ["ours"]
    run = added["runs"][speed["rows"][0]["run"]]
    assert run["command"] == "python benchmarks/count.py --data …/data --seeds 3"
    assert f"pytest {pytest.__version__}" in run["versions"]
    assert run["versions"].endswith("abacus 2.0")
    assert "core" in run["machine"]
    used = {row["run"] for question in added["questions"].values() for row in question["rows"]}
    assert {*added["runs"]} == used
    assert added["runs"]["a"]["machine"] == "an abacus"  # of the row that was not measured again


def test_a_table_is_printed_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "RECORDED", tmp_path)
    table = common.Table("counting", "speed", "side", "texts/s", "F1", "change", "code")
    table.row("ours", "1,204", "0.97", "+1.5", "a | b", peer="theirs", ratio=2.5)
    header, row = "| side | texts/s | F1 | change | code |", "| ours | 1,204 | 0.97 | +1.5 | a \\| b |"
    assert capsys.readouterr().out == f"{header}\n|---|---|---|---|---|\n{row}\n"
    content = json.loads((tmp_path / "counting.json").read_text(encoding="utf-8"))
    (row,) = content["questions"]["speed"]["rows"]
    assert row["figures"] == {"texts/s": 1204, "F1": 0.97, "change": "+1.5", "code": "a | b"}
    assert (row["row"], row["peer"], row["ratio"]) == ("ours", "theirs", 2.5)
    assert [*content["runs"]] == [row["run"]]


CONFIGS = sorted(path for path in (ROOT / "benchmarks").glob("*/*.yaml") if "../data/" in path.read_text("utf-8"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_data_paths_of_a_yaml_lead_into_the_folder_of_data(tmp_path: Path, path: Path) -> None:
    folder = tmp_path / "my data: all"
    files = re.findall(r"(train|dev|test): \.\./data/(\S+)", path.read_text(encoding="utf-8"))
    assert len(files) == path.read_text(encoding="utf-8").count("../data/")
    for _, name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    data = load_config(path, common.data_overrides(path, folder), runs=False, files=False).data
    paths = {"train": data.train, "dev": data.dev, **data.tests}
    assert {part: paths[part] for part, _ in files} == {part: folder / name for part, name in files}


@pytest.mark.parametrize("name", ["snips", "subjectivity"])
def test_every_variant_of_the_lstm_is_the_baseline_but_for_one_option(name: str) -> None:
    ablations, path = benchmark_script("lstm_ablations"), ROOT / "benchmarks" / "encoders" / f"ablation-{name}.yaml"
    found = []
    for variant, (_, change) in ablations.VARIANTS.items():
        assert len(change) == (variant != "V")
        options = {"peephole": True} | change
        overrides = [f"encoder.{option}={json.dumps(value)}" for option, value in options.items()]
        encoder = load_config(path, overrides, runs=False, files=False).inputs[0].stages[-1]
        construct(encoder.cls, 4, {}, **encoder.options)  # refuses options that contradict each other
        found.append(encoder.options)
    assert len({json.dumps(options) for options in found}) == 9
    assert list(ablations.DATA_SETS) == ["subjectivity", "snips"]


def test_every_encoder_is_compared_with_torch_or_named_as_left_out() -> None:
    encoders = benchmark_script("encoders")
    installed = {o.name for o in encoders.Plugins().offers if (o.kind, o.distribution) == ("encoder", encoders.BUILTIN)}
    assert installed == {name for name, _ in encoders.ENCODERS.values()} | encoders.NOT_HERE
    encoders.REPEATS = 1
    assert all(encoders._ratio(name, options(6), 1, 4, 6) > 0 for name, options in encoders.ENCODERS.values())


def test_missing_data_is_an_error_that_names_the_option_and_the_variable(tmp_path: Path) -> None:
    for folder, path in ((None, "no folder"), (tmp_path, str(tmp_path / "ncbi_disease" / "train.tsv"))):
        with pytest.raises(SystemExit) as error:
            common.data_overrides(ROOT / "benchmarks" / "ner" / "ncbi.yaml", folder)
        for word in (path, "--data", "SEQPIPE_DATA"):
            assert word in str(error.value)


def test_the_variable_is_the_default_of_the_option(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "ner.py"), "quality", "ncbi"]
    variable, option = tmp_path / "variable", tmp_path / "option"
    of_variable = {"SEQPIPE_DATA": str(variable)}
    message = "no folder of data sets: give --data FOLDER, or set the environment variable SEQPIPE_DATA"
    for environment, more, named in (
        ({}, [], message),
        (of_variable, [], f"{variable / 'ncbi_disease' / 'train.tsv'}: not found"),
        (of_variable, ["--data", str(option)], f"{option / 'ncbi_disease' / 'train.tsv'}: not found"),
    ):
        clean = {key: value for key, value in os.environ.items() if key != "SEQPIPE_DATA"}
        done = subprocess.run([*command, *more], env=clean | environment, capture_output=True, text=True)
        assert done.returncode == 1
        assert named in done.stderr
