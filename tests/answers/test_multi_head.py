"""A list of heads shares what is below it: losses weighted, one graph, one answer with a part for each."""

import json
from pathlib import Path

import pytest
import torch
from tiny_pipelines import build_parts, load_tagger, reversals, succeed, write_jsonl, write_seq2seq, write_tagger

from seqpipe import Model
from seqpipe import load as open_bundle
from seqpipe.answers.classification import Label
from seqpipe.answers.metrics.numbers import scores_table
from seqpipe.answers.pointers import Pointers
from seqpipe.answers.registry import MultiHead
from seqpipe.answers.types import Metric
from seqpipe.config.loader import load_config
from seqpipe.errors import ConfigError
from seqpipe.evaluation.scores import headline, headlines, score_records
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.evaluation import option_table

HEADS = "head=[{use: label, target: topic, name: topic}, {use: crf, name: names, weight: 0.5}]"
LEAN = "embedding={use: lookup, dim: 8}"
TEXT = "Ada flew to Oslo ."


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained, exported run of two heads."""
    folder = tmp_path_factory.mktemp("joint")
    succeed("run", write_tagger(folder), "--set", HEADS, "--set", LEAN, "--quiet", folder=folder)
    return folder / "runs/tiny"


@pytest.fixture(scope="module")
def model(run: Path) -> Model:
    return open_bundle(run / "bundle", "cpu")


def test_an_answer_has_a_part_for_each_head(model: Model) -> None:
    answers = model([TEXT, "", "nobody came ."])
    assert [list(answer) for answer in answers] == [["topic", "names"]] * 3
    assert answers[0]["topic"]["label"] in ("a", "b")
    assert answers[1] == {"topic": {"label": None, "score": 0.0}, "names": []}


def test_a_head_of_labels_takes_n_best_beside_the_others(model: Model) -> None:
    plain, answer = model(TEXT), model(TEXT, **{"topic.n_best": "all"})
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


def test_a_bundle_of_several_heads_names_outputs_options_and_answers_by_head(run: Path, model: Model) -> None:
    manifest = model.manifest
    assert list(manifest.answer["parts"]) == ["topic", "names"]
    assert {"topic.label", "topic.scores", "names.tags"} <= set(manifest.outputs)
    assert list(manifest.options) == ["names.n_best"]
    several = model(TEXT, **{"names.n_best": 2})
    assert len(several["names"]) == 2
    assert several["topic"] == model(TEXT)["topic"]
    assert model("", **{"names.n_best": 2})["names"] == [{"spans": [], "score": 1.0, "log_score": 0.0}]
    card = (run / "bundle/README.md").read_text()
    assert ("`topic`" in card, "| test | names.f1 |" in card) == (True, True)


def test_scores_are_those_of_each_head_their_mean_and_the_fraction_of_texts_all_right(run: Path) -> None:
    scores = json.loads((run / "metrics.json").read_text())["test"]
    assert list(scores) == ["mean", "exact", "topic", "names"]
    assert scores["mean"] == pytest.approx((scores["topic"]["accuracy"] + scores["names"]["f1"]) / 2)
    assert headline(scores) == ("mean", scores["mean"])
    assert list(headlines(scores)) == ["mean", "topic.accuracy", "names.f1"]
    shown = scores_table(scores, {"accuracy": Metric(), "f1": Metric()})
    assert shown.index("topic\n") < shown.index("names\n") < shown.index("exact")


def test_exact_counts_the_texts_on_which_every_head_is_right(model: Model, tmp_path: Path) -> None:
    records = []
    for text in (TEXT, "nobody came .", "it rains in Rome and in Lima today ."):
        answer = model(text)
        spans = [{"label": s["entity_group"], "start": s["start"], "end": s["end"]} for s in answer["names"]]
        records.append({"text": text, "topic": answer["topic"]["label"], "spans": spans})
    assert score_records(model.predictor, records)[""]["exact"] == 1.0
    right = records[1]["topic"]
    records[1]["topic"] = {"a": "b", "b": "a"}[right]
    errors = tmp_path / "errors.jsonl"
    assert score_records(model.predictor, records, errors=errors)[""]["exact"] == pytest.approx(2 / 3)
    (line,) = map(json.loads, errors.read_text().splitlines())
    assert line["mistakes"]["topic"] == {"expected": records[1]["topic"], "got": right}
    assert "names" not in line


def test_the_loss_is_the_weighted_sum_of_the_heads_losses(tmp_path: Path) -> None:
    def loss(heads: str) -> torch.Tensor:
        pipeline, batches = build_parts(load_tagger(tmp_path, LEAN, heads))
        torch.manual_seed(0)
        for parameter in pipeline.parameters():
            torch.nn.init.constant_(parameter, 0.01)
        return pipeline.eval().loss(batches(batches.order(0)[0]))

    topic, names = "{use: label, target: topic, name: topic}", "{use: tags, name: names}"
    alone = [loss(f"head={topic}"), loss(f"head={names}")]
    both = loss(f"head=[{topic[:-1]}, weight: 2.0}}, {names[:-1]}, weight: 0.5}}]")
    assert both.item() == pytest.approx(2 * alone[0].item() + alone[1].item() / 2, rel=1e-6)


def test_heads_that_write_have_a_target_tokenizer_each(tmp_path: Path) -> None:
    use = {"use": "seq2seq", "hidden": 8, "target_tokenizer": "chars"}
    heads = [{**use, "name": "back", "target": "reversed"}, {**use, "name": "loud", "target": "loud"}]
    path = write_seq2seq(tmp_path, {"head": heads})
    write_jsonl(tmp_path / "train.jsonl", [{**row, "loud": row["text"].upper()} for row in reversals(40, 1)])
    config = load_config(path)
    network = build_parts(config)[0]
    artifacts = network.artifacts
    assert list(artifacts.target_tokenizers) == ["back", "loud"]
    artifacts.save(tmp_path)
    again = Artifacts.load(tmp_path)
    vocabularies = [task.target_vocabulary for task in again.tasks]
    assert vocabularies == [task.target_vocabulary for task in artifacts.tasks]
    assert vocabularies[0] != vocabularies[1]
    assert {"back.beams", "loud.beams"} <= option_table(network).keys()


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ("[{use: tags, name: a.b}]", "should be text matching"),
        ("[{use: tags}, {use: seq2seq, target: x}]", "its constructor asks for 'target_vocabulary'"),
    ],
)
def test_heads_that_do_not_fit_together_are_an_error_with_the_fix(tmp_path: Path, heads: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_tagger(tmp_path, f"head={heads}")


def test_no_stage_before_several_heads_can_ask_for_the_labels_of_one(tmp_path: Path) -> None:
    class Knowing(torch.nn.Identity):
        def __init__(self, dim: int, labels: tuple[str, ...]):
            super().__init__()
            self.dim = dim

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    load_tagger(tmp_path, "encoder=knowing", knowing=("encoder", Knowing))
    with pytest.raises(ConfigError, match="asks for 'labels'"):
        load_tagger(tmp_path, "encoder=knowing", HEADS, knowing=("encoder", Knowing))


def test_the_gap_between_two_decisions_is_that_of_the_head_that_decided_otherwise(tmp_path: Path) -> None:
    pipeline, batches = build_parts(load_tagger(tmp_path, LEAN, HEADS))
    features = batches([0])
    with torch.no_grad():
        decision = pipeline.eval().decide(features, {})
        p = decision["topic.scores"][0]
        assert not pipeline.gaps(features, decision, decision).any()
        gaps = pipeline.gaps(features, decision, {**decision, "topic.label": 1 - decision["topic.label"]})
        assert gaps.amax().item() == pytest.approx((p[0].log() - p[1].log()).abs().item(), rel=1e-4)
