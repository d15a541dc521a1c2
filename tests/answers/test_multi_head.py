"""A list of heads shares what is below it: losses weighted, one graph, one answer with a part for each."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from factory import QUIET, Watched, parts, seqpipe, tagging, tiny, write_jsonl, writing

from seqpipe import load as open_bundle
from seqpipe.answers.classification import Label
from seqpipe.answers.metrics.numbers import table
from seqpipe.answers.pointers import Pointers
from seqpipe.answers.registry import MultiHead
from seqpipe.answers.types import Metric
from seqpipe.config.loader import Config, load
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError
from seqpipe.pipeline.run_folder import load_trained, open_run
from seqpipe.runtime.evaluate import evaluate, headline, headlines
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.evaluation import option_table, predictor

HEADS = "head=[{use: label, target: topic, name: topic}, {use: crf, name: names, weight: 0.5}]"
LEAN = "embedding={use: lookup, dim: 8}"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained, exported run of two heads."""
    folder = tmp_path_factory.mktemp("joint")
    done = seqpipe("run", tagging(folder), "--set", HEADS, "--set", LEAN, "--quiet", folder=folder)
    assert done.code == 0, done.err
    return folder / "runs/tiny"


def test_an_answer_has_a_part_for_each_head_and_equals_what_pytorch_answers(finished: Path) -> None:
    model = open_bundle(finished / "bundle", "cpu")
    records = [{"text": "Ada flew to Oslo ."}, {"text": ""}, {"text": "nobody came ."}]
    answers = model(records)
    assert [list(answer) for answer in answers] == [["topic", "names"]] * 3
    assert answers[0]["topic"]["label"] in ("a", "b")
    assert answers[1] == {"topic": {"label": None, "score": 0.0}, "names": []}
    trained = open_run(finished, QUIET)
    ours = predictor(load_trained(trained), trained.config)
    for one, other in zip(ours.stream(records), answers, strict=True):
        assert one["topic"]["label"] == other["topic"]["label"]
        assert [span["word"] for span in one["names"]] == [span["word"] for span in other["names"]]


def test_a_head_of_labels_takes_n_best_beside_the_others(finished: Path) -> None:
    model = open_bundle(finished / "bundle", "cpu")
    plain = model("Ada flew to Oslo .")
    answer = model("Ada flew to Oslo .", **{"topic.n_best": "all"})
    assert {part["label"] for part in answer["topic"]} == {"a", "b"}
    assert (answer["topic"][0], answer["names"]) == (plain["topic"], plain["names"])
    assert model("", **{"topic.n_best": 2}) == {"topic": [{"label": None, "score": 0.0}], "names": []}
    assert isinstance(model.labels, dict)
    assert model.labels["topic"] == ("a", "b")
    assert "topic='label', names='spans'" in repr(model)


def test_only_the_heads_that_suffer_from_long_inputs_warn_of_them() -> None:
    kind = MultiHead({"topic": Label(["a", "b"]), "order": Pointers()})
    answer = {"topic": {"label": "a", "score": 0.9}, "order": {"pointers": [1], "words": ["b"], "score": 0.5}}
    warned = kind.with_warning(answer, "long")
    assert warned == {"topic": answer["topic"], "order": {**answer["order"], "warning": "long"}}
    assert [kind.warning(warned), kind.warning(answer)] == ["long", ""]


def test_a_bundle_of_several_heads_names_outputs_options_and_answers_by_head(finished: Path) -> None:
    model = open_bundle(finished / "bundle", "cpu")
    manifest = model.manifest
    assert list(manifest.answer["parts"]) == ["topic", "names"]
    assert {"topic.label", "topic.scores", "names.tags"} <= set(manifest.outputs)
    assert list(manifest.options) == ["names.n_best"]
    several = model("Ada flew to Oslo .", **{"names.n_best": 2})
    assert len(several["names"]) == 2
    assert several["topic"] == model("Ada flew to Oslo .")["topic"]
    assert model("", **{"names.n_best": 2})["names"] == [{"spans": [], "score": 1.0}]
    assert model.verify() == []
    card = (finished / "bundle/README.md").read_text()
    assert "`topic`" in card
    assert "| test | names.f1 |" in card


def test_scores_are_those_of_each_head_their_mean_and_the_share_of_texts_all_right(finished: Path) -> None:
    scores = json.loads((finished / "metrics.json").read_text())["test"]
    assert list(scores) == ["mean", "exact", "topic", "names"]
    assert scores["mean"] == pytest.approx((scores["topic"]["accuracy"] + scores["names"]["f1"]) / 2)
    assert headline(scores) == ("mean", scores["mean"])
    assert list(headlines(scores)) == ["mean", "topic.accuracy", "names.f1"]
    shown = table(scores, {"accuracy": Metric(), "f1": Metric()})
    assert shown.index("topic\n") < shown.index("names\n") < shown.index("exact")


def test_exact_counts_the_texts_on_which_every_head_is_right(finished: Path, tmp_path: Path) -> None:
    model = open_bundle(finished / "bundle", "cpu")
    texts = ["Ada flew to Oslo .", "nobody came .", "it rains in Rome and in Lima today ."]
    records = []
    for text, answer in zip(texts, model(texts), strict=True):
        spans = [{"label": s["entity_group"], "start": s["start"], "end": s["end"]} for s in answer["names"]]
        records.append({"text": text, "topic": answer["topic"]["label"], "spans": spans})
    assert evaluate(model.predictor, records)[""]["exact"] == 1.0
    records[1]["topic"] = {"a": "b", "b": "a"}[records[1]["topic"]]
    errors = tmp_path / "errors.jsonl"
    found = evaluate(model.predictor, records, errors=errors)[""]
    assert found["exact"] == pytest.approx(2 / 3)
    (line,) = map(json.loads, errors.read_text().splitlines())
    assert line["mistakes"]["topic"] == {
        "expected": records[1]["topic"],
        "got": {"a": "b", "b": "a"}[records[1]["topic"]],
    }
    assert "names" not in line


def test_the_loss_is_the_weighted_sum_of_the_heads_losses(tmp_path: Path) -> None:
    def loss(heads: str) -> torch.Tensor:
        pipeline, batches = parts(tiny(tmp_path, LEAN, heads))
        torch.manual_seed(0)
        for parameter in pipeline.parameters():
            torch.nn.init.constant_(parameter, 0.01)
        return pipeline.eval().loss(batches(batches.order(0)[0]))

    topic, names = "{use: label, target: topic, name: topic}", "{use: tags, name: names}"
    alone = [loss(f"head={topic}"), loss(f"head={names}")]
    both = loss(f"head=[{topic[:-1]}, weight: 2.0}}, {names[:-1]}, weight: 0.5}}]")
    assert both.item() == pytest.approx(2 * alone[0].item() + alone[1].item() / 2, rel=1e-6)


def test_two_heads_of_one_kind_learn_from_fields_of_their_own(tmp_path: Path) -> None:
    config = tiny(tmp_path, LEAN, HEADS.replace("{use: crf, name: names, weight: 0.5}", "{use: label, target: topic}"))
    assert [head.name for head in config.head] == ["topic", "label"]
    pipeline, batches = parts(config)
    batch = batches(batches.order(0)[0])
    assert {"topic.label", "label.label"} <= batch.keys()
    assert torch.isfinite(pipeline.loss(batch))


def test_heads_that_write_have_a_target_tokenizer_each(tmp_path: Path) -> None:
    config = load(two_writers(tmp_path))
    pipeline, _ = parts(config)
    assert list(pipeline.artifacts.target_tokenizers) == ["back", "loud"]
    pipeline.artifacts.save(tmp_path)
    again = Artifacts.load(tmp_path)
    for one, other in zip(pipeline.artifacts.tasks, again.tasks, strict=True):
        assert one.target_vocabulary == other.target_vocabulary
    assert again.tasks[0].target_vocabulary != again.tasks[1].target_vocabulary
    assert {"back.beams", "loud.beams"} <= option_table(*config.head).keys()


def two_writers(folder: Path) -> Path:
    path = writing(folder)
    for name in ("train", "dev", "test"):
        rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        write_jsonl(folder / f"{name}.jsonl", [{**row, "loud": row["text"].upper()} for row in rows])
    content = load(path)
    one = {"use": "seq2seq", "hidden": 8, "target_tokenizer": "chars"}
    heads = [{**one, "name": "back", "target": "reversed"}, {**one, "name": "loud", "target": "loud"}]
    path.write_text(dump({**_plain(content), "head": heads}))
    return path


def _plain(config: Config) -> dict[str, object]:
    data = {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"}
    return {"name": config.name, "data": data, "tokenizer": "chars", "embedding": "lookup", "encoder": "lstm"}


@pytest.mark.parametrize(
    ("heads", "told"),
    [
        ("[{use: tags}, {use: tags}]", "two heads are called 'tags'; give one of them another name"),
        ("[{use: tags, name: a.b}]", "should be text matching"),
        ("[{use: tags}, {use: seq2seq, target: x}]", "its constructor asks for 'target_vocabulary'"),
    ],
)
def test_a_list_of_heads_that_cannot_be_is_an_error_with_the_cure(tmp_path: Path, heads: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny(tmp_path, f"head={heads}")
    assert told in str(caught.value)


def test_no_stage_before_several_heads_can_ask_for_the_labels_of_one(tmp_path: Path) -> None:
    class Knowing(torch.nn.Module):
        def __init__(self, dim: int, labels: tuple[str, ...]):
            super().__init__()
            self.dim = dim

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    tiny(tmp_path, "encoder=knowing", knowing=("encoder", Knowing))
    with pytest.raises(ConfigError, match="asks for 'labels'"):
        tiny(tmp_path, "encoder=knowing", HEADS, knowing=("encoder", Knowing))


def test_the_gap_between_two_decisions_is_that_of_the_head_that_decided_otherwise(tmp_path: Path) -> None:
    pipeline, _ = parts(tiny(tmp_path, LEAN, HEADS))
    pipeline.eval()
    arrays = pipeline.artifacts.featurizer.collate(pipeline.artifacts.featurizer.docs([{"text": "Ada flew to Oslo ."}]))
    features = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    with torch.no_grad():
        one = pipeline.decide(features, {})
        other = {**one, "topic.label": 1 - one["topic.label"]}
        p = one["topic.scores"][0]
        assert not pipeline.gaps(features, one, one).any()
        apart = (p[0].log() - p[1].log()).abs().item()
        assert pipeline.gaps(features, one, other).amax().item() == pytest.approx(apart, rel=1e-4)


def test_training_of_several_heads_stopped_and_gone_on_with_is_bit_equal(tmp_path: Path) -> None:
    from seqpipe.training.trainer import Trainer

    config = tiny(tmp_path, LEAN, HEADS, "train.checkpoint_steps=1")
    whole, batches = parts(config)
    Trainer(whole, config, batches, None, tmp_path / "whole", QUIET).train()

    class StopError(Exception):
        pass

    def stop(count: int) -> None:
        if count == 3:
            raise StopError

    with pytest.raises(StopError):
        Trainer(*(one := parts(config))[:1], config, one[1], None, tmp_path / "cut", Watched(stop)).train()
    again, batches = parts(config)
    Trainer(again, config, batches, None, tmp_path / "cut", QUIET).train()
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
