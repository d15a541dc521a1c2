"""A head that learns from the text itself: what is asked of its class, what is refused, and what is measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from gallery import write_pipeline
from tiny_pipelines import plugins, succeed
from torch import Tensor, nn

from seqpipe.config.contract import metric_types
from seqpipe.config.loader import Config, load_config
from seqpipe.errors import ConfigError, PluginError
from seqpipe.evaluation.scores import goodness, score_records
from seqpipe.testing import check_head
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import collate, examples, load_records
from seqpipe.training.evaluation import dev_measures, predictor
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.network import Network


class Plain(nn.Module):
    """Corrupts no input, and learns that every text is as it should be."""

    answer = "score"
    self_supervised: ClassVar = True

    def __init__(self, dim: int):
        super().__init__()
        self.linear = nn.Linear(dim, 1)

    def loss(self, x: Tensor, mask: Tensor) -> Tensor:
        return -nn.functional.logsigmoid(self.decide(x, mask)["score"]).mean()

    def measures(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"error": torch.stack([self.loss(x, mask) * len(x), torch.tensor(float(len(x)))])}

    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        mean = torch.where(mask[..., None], x, 0.0).sum(1) / mask.sum(1, keepdim=True)
        return {"score": self.linear(mean)[:, 0]}


class Backward(Plain):
    """Learns which texts of a batch have the same token everywhere."""

    corrupted_inputs: ClassVar[Any] = ("ids", "turned")

    def corrupt_batch(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        turned = torch.arange(len(ids)) % 2 == 0
        return {"ids": torch.where(turned[:, None] & mask, 5, ids), "turned": turned}

    def loss(self, x: Tensor, mask: Tensor, turned: Tensor) -> Tensor:  # type: ignore[override]
        return nn.functional.binary_cross_entropy_with_logits(self.decide(x, mask)["score"], turned.float())

    def measures(self, x: Tensor, mask: Tensor, turned: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        count = torch.tensor(float(len(turned)))
        return {"turned_perplexity": torch.stack([self.loss(x, mask, turned) * count, count])}


def records(count: int, seed: int) -> list[dict[str, Any]]:
    return [{"text": f"a b c {i} d", "label": "ab"[i % 2]} for i in range(count)]


def backward(folder: Path, toy: type = Backward, head: Any = "backward") -> Config:
    yaml = write_pipeline(folder, records, "back", (12, 12, 12), tokenizer="words", head=head)
    return load_config(yaml, (), plugins(backward=("head", toy)))


def fitted(config: Config, extra: Sequence[Any] = ()) -> tuple[Network, dict[str, Tensor], list[Any]]:
    """The pipeline at its first weights, a batch of all records, and the records."""
    rows = [*load_records(config.data.reader, config.data.train, 12), *extra]
    artifacts = fit_artifacts(config, rows)
    torch.manual_seed(1)
    return Network(config, artifacts), collate(artifacts, examples(config, artifacts, rows)), rows


def test_no_record_needs_a_target_and_the_loss_is_of_what_is_hidden(tmp_path: Path) -> None:
    network, batch, _ = fitted(backward(tmp_path))
    network.artifacts.save(tmp_path)
    assert Artifacts.load(tmp_path).kind.manifest() == {"kind": "score", "target": None, "self_supervised": True}
    assert set(batch) == {"ids", "mask"}
    plain = network(dict(batch))
    corrupted = network(network.corrupt(batch))
    assert torch.equal(corrupted["x"][1::2], plain["x"][1::2])
    assert not torch.equal(corrupted["x"][::2], plain["x"][::2])
    loss = network.head.loss(corrupted["x"], corrupted["mask"], corrupted["turned"])
    assert network.loss(batch).item() == pytest.approx(loss.item())
    (scores,) = dev_measures(network, [batch, batch])[1].values()
    assert scores["turned_perplexity"] == pytest.approx(network.loss(batch).exp().item(), rel=1e-5)


def test_without_a_reference_the_mean_of_its_numbers_is_measured(tmp_path: Path) -> None:
    config = backward(tmp_path)
    network, _, rows = fitted(config, [{"text": ""}])
    answers = [answer["score"] for answer in predictor(network).stream(rows)]
    scores = score_records(predictor(network), rows)[""]
    assert scores == {"mean_score": pytest.approx(sum(answers[:-1]) / 12), "unanswered": 1}


def test_of_a_perplexity_the_lower_is_the_better(tmp_path: Path) -> None:
    metrics = metric_types(backward(tmp_path, head={"use": "mlm"}).head)
    assert goodness({"perplexity": 3.0, "masked_accuracy": 0.5}, None, metrics) == -3.0
    assert goodness({"masked_accuracy": 0.5, "perplexity": 3.0}, None, metrics) == 0.5


def test_a_corruption_that_is_not_what_was_stated_is_reported(tmp_path: Path) -> None:
    class Forgets(Backward):
        def corrupt_batch(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
            return {"ids": ids}

    network, batch, _ = fitted(backward(tmp_path, Forgets))
    message = "`corrupt_batch` returned no tensor 'turned', which its `corrupted_inputs` declares"
    with pytest.raises(PluginError, match=message):
        network.loss(batch)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corrupted_inputs": ()}, "must name what `corrupt_batch` returns; add both, or neither"),
        ({"corrupted_inputs": "ids"}, "its `corrupted_inputs` must be a tuple such as"),
        ({"corrupted_inputs": staticmethod(lambda options: {}["x"])}, "`corrupted_inputs` raised KeyError"),
        ({"corrupt_batch": lambda self, x: {}}, "`corrupt_batch` asks for 'x', which nothing provides"),
        ({"answer": "label"}, "answers with score, vector, fill-mask, span-infilling, not with label"),
    ],
)
def test_a_class_that_does_not_hold_together_is_reported(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        backward(tmp_path, type("Odd", (Backward,), changes))
    assert message in str(caught.value)


def test_a_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it learns from the text itself; delete `target`"):
        backward(tmp_path, head={"use": "backward", "target": "label"})


def test_beside_a_head_with_labels_those_alone_decide_the_score(tmp_path: Path) -> None:
    config = backward(tmp_path, Plain, head=[{"use": "backward"}, {"use": "label"}])
    network, batch, rows = fitted(config)
    measures = {name: set(scores) for name, scores in dev_measures(network, [batch])[1].items()}
    assert measures == {"backward": {"error"}, "label": set()}
    scores = score_records(predictor(network), rows)[""]
    assert scores["mean"] == scores["exact"] == scores["label"]["accuracy"]
    assert set(scores["backward"]) == {"mean_score"}


def test_a_sound_head_passes_the_kit() -> None:
    with pytest.raises(AssertionError) as caught:
        check_head(Backward)
    failed = [line for line in str(caught.value).splitlines() if ": failed: " in line]
    assert all("import" in line or "in training the corruption is the same" in line for line in failed), failed


def test_check_explains_which_stage_corrupts_an_input(tmp_path: Path) -> None:
    backward(tmp_path, head="mlm")
    done = succeed("check", tmp_path / "back.yaml", "--explain")
    rows = [line.split() for line in done.out.splitlines() if line.startswith("target_mask")]
    assert [(row[4], row[-1]) for row in rows] == [("head.corrupt_batch", "head.measures")]
