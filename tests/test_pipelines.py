"""Every pipeline that is shipped is sound: checked, trained some steps, exported, verified and run."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_placement import faults_on_cuda
from documents import ROOT, blocks
from factory import seqpipe
from huggingface_hub import ModelCard
from pretrained import checkpoint

from seqpipe import load as load_bundle
from seqpipe.config.loader import load
from seqpipe.console import Console
from seqpipe.errors import UsageError
from seqpipe.pipeline import scoring
from seqpipe.runtime import evaluate
from seqpipe.runtime.parts import Shard
from seqpipe.training.tiny_bert import checkpoint_texts

PIPELINES = sorted((ROOT / "pipelines").glob("*.yaml"))
TYPED = "".join(
    block.code
    for page in (ROOT / "docs").rglob("*.md")
    for block in blocks(page.read_text(encoding="utf-8"))
    if block.how != "no"
)
FEW = {"train": 60, "dev": 10, "test": 12}
# Of what other tests train, export and ask already.
KIN = ("agreement-zh", "poem", "reverse", "sort", "summarise", "tour")
Runs = Callable[[Path], list[str]]


def ran(path: Path) -> Any:
    """A pipeline's file, a long test's if it is of `KIN` or a page of the documentation runs it: that is a test too."""
    typed = re.search(rf"^seqpipe run .*\b{path.name}\b", TYPED, re.MULTILINE)
    return pytest.param(path, marks=[pytest.mark.long] * bool(typed or path.stem in KIN), id=path.stem)


def shortened(path: Path, records: int, folder: Path) -> Path:
    """The first records of a file, in another folder."""
    with path.open(encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            kept = "".join(itertools.islice(file, records))
        elif path.suffix == ".json":
            content = json.load(file)
            few = {"records": records} if "records" in content else {"data": content["data"][: -(-records // 4)]}
            kept = json.dumps(content | few)  # of four questions each
        elif path.parent.name in ("points", "minimal-pairs"):
            kept = "".join(itertools.islice(file, records))
        elif path.suffix == ".csv":
            kept = "".join(itertools.islice(file, records + 1))
        else:
            kept = "\n\n".join(file.read().split("\n\n")[:records]) + "\n"
    target = folder / path.name
    target.write_text(kept, encoding="utf-8")
    return target


def small(path: Path, folder: Path) -> list[str]:
    """Overrides that train this pipeline on little data, a little while; a checkpoint is made for it."""
    config = load(path, runs=False)
    data = config.data
    found = [f"data.train={shortened(data.train, FEW['train'], folder)}", "train.epochs=1", "train.threads=1"]
    found += ["train.epoch_steps=5"] if config.train.epoch_steps else []
    if data.dev:
        found.append(f"data.dev={shortened(data.dev, FEW['dev'], folder)}")
    if data.tests:
        files = {name: str(shortened(file, FEW["test"], folder)) for name, file in data.tests.items()}
        found.append(f"data.test={json.dumps(files)}")
    source = config.inputs[0]
    if source.tokenizer and source.tokenizer.use == "pretrained":
        texts = checkpoint_texts(config, source.tokenizer.options["checkpoint"])
        made = checkpoint(folder / "checkpoint", "bert", texts, most=600)
        place = "encoder.0" if len(source.encoder) > 1 else "encoder"
        found += [f"tokenizer.checkpoint={made}", f"{place}.checkpoint={made}"]
        found += [f"{place}.first=30"] if source.pairs else []
    return found


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Overrides for a pipeline that starts from a run: the run of that pipeline, trained a little when first needed."""
    folder = tmp_path_factory.mktemp("begun")

    @cache
    def trained(name: str) -> Path:
        torch.set_num_threads(1)
        path = PIPELINES[0].parent / f"{name}.yaml"
        done = seqpipe("train", path, *small(path, folder), "--device", "cpu", folder=folder)
        assert done.code == 0, done.err
        return folder / "runs" / name

    def overrides(path: Path) -> list[str]:
        sources = {one.key: one.common_keys["init"] for one in load(path).components if one.common_keys.get("init")}
        return [f"{key}.init={trained(source.name)}" for key, source in sources.items()]

    return overrides


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `pipelines` of a checkout in which nothing has run."""
    folder = tmp_path_factory.mktemp("fresh")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "pipelines"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder / "pipelines"


def test_there_are_pipelines() -> None:
    shipped = "document-han intent-bert intent-lstm intent-zh ner ner-bert-crf ner-zh pos reverse sentiment-cnn"
    assert {
        *shipped.split(),
        "agreement",
        "agreement-zh",
        "answer-span",
        "bilm",
        "caption",
        "chat",
        "classify-from-mlm",
        "couplet",
        "dates",
        "describe",
        "digits",
        "elmo-tagger",
        "faq",
        "hull",
        "mlm",
        "pairs-bert",
        "poem",
        "reviews",
        "segment-zh",
        "slots-and-intent",
        "sort",
        "spoken-digits",
        "summarise",
        "tour",
        "translate",
        "translate-names",
        "translate-rnn",
    } <= {path.stem for path in PIPELINES}


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
class TestPipeline:
    def test_its_first_lines_name_the_schema_and_say_what_it_is_and_it_fits_a_screen(self, path: Path) -> None:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0] == "# yaml-language-server: $schema=schema.json"
        assert lines[1].startswith("# ")
        assert len(lines) <= 40

    def test_its_name_is_its_files(self, path: Path) -> None:
        assert load(path, runs=False).name == path.stem

    def test_all_it_names_is_in_a_fresh_checkout_or_made_by_the_first_run(self, path: Path, fresh: Path) -> None:
        config = load(fresh / path.name)  # data files have to be there
        needs = [need.path for need in config.needs]
        options = [value for component in config.components for value in component.options.values()]
        checkpoints = [
            component.options["checkpoint"] for component in config.components if "checkpoint" in component.options
        ]
        folders = [*checkpoints, *(one.common_keys["init"] for one in config.components if one.common_keys.get("init"))]
        assert set(folders) == set(needs)  # and none is a name on the hub
        assert [
            option for option in options if isinstance(option, Path) and option not in needs and not option.exists()
        ] == []
        checked = seqpipe("check", fresh / path.name, "--static", folder=fresh.parent)
        assert checked.code == 0, checked.err
        assert len([line for line in checked.err.splitlines() if line.startswith("needs ")]) == len(needs)


@pytest.mark.parametrize("path", [ran(path) for path in PIPELINES])
def test_it_trains_exports_verifies_and_answers(path: Path, tmp_path: Path, begun: Runs) -> None:
    torch.set_num_threads(1)
    done = seqpipe("run", path, *small(path, tmp_path), *begun(path), "--device", "cpu", "--json", folder=tmp_path)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    bundle = tmp_path / result["bundle"]
    assert seqpipe("verify", bundle, "--device", "cpu").code == 0
    assert faults_on_cuda(bundle / "model.onnx") == []
    card = ModelCard.load(bundle / "README.md")
    assert {score.dataset_name for score in card.data.eval_results} >= {*result["scores"]}
    assert re.search(r"\n\| train \| (a text of )?[0-9,]+", card.text)
    assert str(tmp_path) not in card.text
    scored = seqpipe("evaluate", bundle, "--device", "cpu", "--json")
    expected = result["scores"]
    if path.stem in ("agreement", "bilm", "gpt", "poem", "reviews"):  # means of numbers, not of decisions
        expected = {name: pytest.approx(one, rel=1e-5) for name, one in expected.items()}
    assert json.loads(scored.out) == expected
    check_shards(bundle, tmp_path / "shards")
    texts = "turn off the lights in the kitchen\n打开厨房的灯\n\nabc\n"
    if load(path, runs=False).inputs[0].pairs:
        texts = "".join(f"{text}\tit is noon\n" for text in texts.splitlines())
    if path.stem == "gpt":  # which goes on with something
        texts = texts.replace("\n\n", "\nRosa\n")
    if path.stem == "describe":
        lines = ({"weather": [i, 9.5, 0, 60], "tone": text} for i, text in enumerate(texts.splitlines()))
        texts = "".join(f"{json.dumps(line)}\n" for line in lines)
    if path.stem in ("caption", "digits"):
        pictures = ([[i * j % 256 for j in range(9)] for i in range(rows)] for rows in (1, 8, 28, 60))
        texts = "".join(f"{json.dumps({'image': rows})}\n" for rows in pictures)
    if path.stem == "spoken-digits":
        sounds = ([i % 50 / 100 for i in range(count)] for count in (1, 700, 0, 4000))
        texts = "".join(f"{json.dumps({'audio': samples})}\n" for samples in sounds)
    if path.stem in ("hull", "sort", "tour"):
        width = 1 if path.stem == "sort" else 2
        rows = [[i * i % 7 / 7, i / 9][:width] for i in range(9)]
        texts = "".join(f"{json.dumps({'points': rows[:count]})}\n" for count in (9, 2, 0, 1))
    answered = seqpipe("predict", bundle, "--device", "cpu", stdin=texts.encode())
    assert (answered.code, len(answered.out.splitlines())) == (0, 4), answered.err
    model = load_bundle(bundle, "cpu", threads=1)
    record = next(iter(model.manifest.golden)).record
    explanation = model.explain(record, method="occlusion", faithfulness=len(str(record)) < 200)
    assert all(np.isfinite(part.weights).all() and len(part.places) for part in explanation.attentions)
    assert explanation.answer == model(record)
    if path.stem in ("translate", "translate-rnn"):  # the text of translate-names is hardly one after an epoch
        assert [part.label for part in explanation.attentions] == explanation.answer["generated_text"].split()
        check_alignment(bundle, "The boy who laughed, sees a dog.")


def check_shards(bundle: Path, folder: Path) -> None:
    """Answers in two shards, in blocks of four records, have the scores of one run, whatever the kind of answer."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (scoring, evaluate):
            patch.setattr(module, "CHUNK", 4)
        if load_bundle(bundle, "cpu").predictor.kind.is_generated:
            with pytest.raises(UsageError, match="without --shard"):
                scoring.answer_shard(bundle, Console(-1), Shard(1, 2), folder, device="cpu")
            return
        for number in (2, 1):
            scoring.answer_shard(bundle, Console(-1), Shard(number, 2), folder, device="cpu")
        scores = scoring.score_shards(bundle, folder, Console(-1))
        assert scores == scoring.score_target(bundle, Console(-1), device="cpu")


def check_alignment(bundle: Path, text: str) -> None:
    """`seqpipe explain` has a row for each word that was written and a column for each of the source, of sum 1."""
    explained = seqpipe("explain", bundle, text, "--option", "prefix=Der", "--device", "cpu", "--json")
    assert explained.code == 0, explained.err
    content = json.loads(explained.out)
    alignment = content["attentions"]["head.attention"]
    assert [text[start:end] for start, end in alignment["places"]] == re.findall(r"\w+|[^\w\s]", text)
    assert alignment["written"][0] == "Der"
    assert alignment["written"] == re.findall(r"\w+|[^\w\s]", content["answer"]["generated_text"])
    weights = torch.tensor(alignment["weights"])
    assert weights.shape == (len(alignment["written"]), len(alignment["places"]))
    torch.testing.assert_close(weights.sum(1), torch.ones(len(weights)), atol=1e-4, rtol=0)
