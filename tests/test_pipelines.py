"""Every pipeline that is shipped is sound: checked, trained for an epoch, exported, verified and run."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from cuda_placement import faults_on_cuda
from hostile_inputs import Comparison
from huggingface_hub import ModelCard
from node_program import alike, in_node, install_node_program
from repository_scripts import ROOT
from shipped_pipelines import PIPELINES, paths_of, small
from tiny_pipelines import seqpipe, succeed

from seqpipe import load as load_bundle
from seqpipe.config.loader import load_config

IMAGES = [{"image": [[i * j % 256 for j in range(9)] for i in range(rows)]} for rows in (1, 8, 28, 60)]
POINTS = [{"points": [[i * i % 7 / 7, i / 9] for i in range(count)]} for count in (9, 2, 0, 1)]
INPUTS = {  # four records, where they are not a text
    "describe": [{"weather": [i, 9.5, 0, 60], "tone": tone} for i, tone in enumerate(["calm", "打开", "", "abc"])],
    "caption": IMAGES,
    "digits": IMAGES,
    "spoken-digits": [{"audio": [i % 50 / 100 for i in range(count)]} for count in (1, 700, 0, 4000)],
    "hull": POINTS,
    "tour": POINTS,
    "sort": [{"points": [row[:1] for row in record["points"]]} for record in POINTS],
}
READ_BY_NODE = (  # by the program of examples/node, which refuses the others
    *("chat", "classify-from-mlm", "couplet", "dates", "elmo-tagger", "intent-lstm", "intent-zh", "ner", "ner-zh"),
    *("pos", "reverse", "segment-zh", "sentiment-cnn", "translate", "translate-rnn"),
)
Overrides = Callable[[Path], list[str]]


@pytest.fixture(scope="session")
def initial_runs(tmp_path_factory: pytest.TempPathFactory) -> Overrides:
    """Overrides for a pipeline that starts from a run: the run of that pipeline, trained when first needed."""
    folder = tmp_path_factory.mktemp("initial")

    @cache
    def trained(name: str) -> Path:
        path = PIPELINES[0].parent / f"{name}.yaml"
        succeed("train", path, *small(path, folder), "--device", "cpu", folder=folder)
        return folder / "runs" / name

    def overrides(path: Path) -> list[str]:
        sources = {
            part.key: part.common_keys["init"] for part in load_config(path).components if part.common_keys.get("init")
        }
        return [f"{key}.init={trained(source.name)}" for key, source in sources.items()]

    return overrides


@pytest.fixture(scope="session")
def fresh_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `pipelines` of a checkout in which nothing has run."""
    folder = tmp_path_factory.mktemp("fresh")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "pipelines"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder / "pipelines"


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """The installed program of examples/node; None without Node.js."""
    return install_node_program(tmp_path_factory.mktemp("node")) if shutil.which("npm") else None


def test_there_are_38_pipelines() -> None:
    assert len(PIPELINES) == 38


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_a_pipeline_fits_a_screen_names_the_schema_and_has_the_name_of_its_file(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# yaml-language-server: $schema=schema.json"
    assert lines[1].startswith("# ")
    assert len(lines) <= 40
    assert load_config(path, runs=False).name == path.stem


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_all_that_a_pipeline_names_is_in_a_fresh_checkout_or_made_by_the_first_run(
    path: Path, fresh_checkout: Path
) -> None:
    config = load_config(fresh_checkout / path.name)  # data files have to be there
    needs = [need.path for need in config.needs]
    options = [value for component in config.components for value in component.options.values()]
    checkpoints = [part.options["checkpoint"] for part in config.components if "checkpoint" in part.options]
    initial = [part.common_keys["init"] for part in config.components if part.common_keys.get("init")]
    assert {*checkpoints, *initial} == {*needs}  # and none is a name on the hub
    paths = [option for option in options if isinstance(option, Path) and option not in needs]
    assert [option for option in paths if not option.exists()] == []
    checked = succeed("check", fresh_checkout / path.name, "--static", folder=fresh_checkout.parent)
    assert len([line for line in checked.err.splitlines() if line.startswith("needs ")]) == len(needs)


def four_inputs(path: Path) -> str:
    """Four lines for `predict`: texts of two languages, an empty one and one that says nothing, or what is read."""
    if path.stem in INPUTS:
        return "".join(f"{json.dumps(record)}\n" for record in INPUTS[path.stem])
    texts = ["turn off the lights in the kitchen", "打开厨房的灯", "Rosa" if path.stem == "gpt" else "", "abc"]
    second = "\tit is noon" if load_config(path, runs=False).inputs[0].pairs else ""
    return "".join(f"{text}{second}\n" for text in texts)


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=pytest.mark.nightly(*paths_of(path)), id=path.stem) for path in PIPELINES]
)
def test_a_pipeline_trains_exports_verifies_and_answers(
    path: Path, tmp_path: Path, initial_runs: Overrides, node: Path | None
) -> None:
    overrides = [*small(path, tmp_path), *initial_runs(path)]
    ran = succeed("run", path, *overrides, "--device", "cpu", "--json", folder=tmp_path)
    result = json.loads(ran.out)
    bundle = tmp_path / result["bundle"]
    assert seqpipe("verify", bundle, "--device", "cpu").code == 0
    assert faults_on_cuda(bundle / "model.onnx") == []
    check_second_runtime(bundle)
    if node is not None:
        check_node_program(bundle, node, path.stem in READ_BY_NODE)
    card = ModelCard.load(bundle / "README.md")
    assert {score.dataset_name for score in card.data.eval_results} >= {*result["scores"]}
    assert re.search(r"\n\| train \| (a text of )?[0-9,]+", card.text)
    assert str(tmp_path) not in card.text
    expected = result["scores"]
    if path.stem in ("agreement", "bilm", "gpt", "poem", "reviews"):  # means of numbers, not of decisions
        expected = {name: pytest.approx(scores, rel=1e-5) for name, scores in expected.items()}
    assert json.loads(seqpipe("evaluate", bundle, "--device", "cpu", "--json").out) == expected
    answered = seqpipe("predict", bundle, "--device", "cpu", stdin=four_inputs(path).encode())
    assert (answered.code, len(answered.out.splitlines())) == (0, 4), answered.err
    if path.stem in ("translate", "translate-rnn"):  # the text of translate-names is hardly one after an epoch
        record = next(iter(load_bundle(bundle, "cpu").manifest.golden)).record
        explanation = load_bundle(bundle, "cpu").explain(record, method="occlusion")
        assert [part.label for part in explanation.attentions] == explanation.answer["generated_text"].split()
        check_alignment(bundle, "The boy who laughed, sees a dog.")


def check_second_runtime(bundle: Path) -> None:
    """A runtime written from the page of the format alone repeats golden examples and answers 100 hostile inputs."""
    compared = Comparison(bundle, 100)
    assert compared.golden > 0
    assert compared.failed_golden == []
    assert compared.differences == []
    assert compared.tokenizers <= {"Tokenizer"}  # no part of a tokenizer is read by the library
    assert len({json.dumps(answer) for answer in compared.answers}) > 5


def check_node_program(bundle: Path, node: Path, reads: bool) -> None:
    """The Node example repeats the golden examples of the bundles that it reads, and names why it refuses others."""
    if not reads:
        with pytest.raises(AssertionError, match=r"answers of the kind|an input of the kind|this program reads"):
            in_node(node, bundle, [])
        return
    golden = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))["golden"]
    answers = in_node(node, bundle, [[[example["record"]], example.get("options", {})] for example in golden])
    assert len(answers) == len(golden) > 0
    assert [i for i, example in enumerate(golden) if not alike(example["answer"], answers[i][0])] == []


def check_alignment(bundle: Path, text: str) -> None:
    """`seqpipe explain` has a row for each word that was written and a column for each of the source, of sum 1."""
    explained = succeed("explain", bundle, text, "--option", "prefix=Der", "--device", "cpu", "--json")
    content = json.loads(explained.out)
    alignment = content["attentions"]["head.attention"]
    assert [text[start:end] for start, end in alignment["places"]] == re.findall(r"\w+|[^\w\s]", text)
    assert alignment["written"][0] == "Der"
    assert alignment["written"] == re.findall(r"\w+|[^\w\s]", content["answer"]["generated_text"])
    weights = torch.tensor(alignment["weights"])
    assert weights.shape == (len(alignment["written"]), len(alignment["places"]))
    torch.testing.assert_close(weights.sum(1), torch.ones(len(weights)), atol=1e-4, rtol=0)
