"""Stages are wired by the names of their parameters, and a stage that does not do what it states is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from factory import tiny
from torch import Tensor, nn

from seqpipe.config.loader import Config
from seqpipe.errors import DataError, PluginError
from seqpipe.plugin import Size
from seqpipe.runtime.model import same_answer
from seqpipe.training.datasets import Batches, examples, read
from seqpipe.training.evaluation import option_table, predictor
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.pipeline import Pipeline

B, T = 2, 3
FEATURES = {"ids": torch.tensor([[4, 5, 6], [7, 0, 0]]), "mask": torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()}


class Lengths(nn.Module):
    """A word's vector is its id and its number of characters."""

    def __init__(self, vocabulary: Any):
        super().__init__()
        self.dim, self.tokens = 2, vocabulary

    def forward(self, ids: Tensor) -> Tensor:
        return torch.stack(
            [ids, torch.tensor([[len(self.tokens[i]) for i in row] for row in ids.tolist()])], -1
        ).float()


class Sums(nn.Module):
    """Sums each row, and gives the sum a name."""

    returns: ClassVar = ("x", "total")

    def __init__(self, dim: int, *, times: int = 1):
        super().__init__()
        self.dim, self.times, self.given = dim, times, dim

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        total = (x * mask[..., None]).sum(1)
        return {"x": x * self.times, "total": total}


class Shows(nn.Module):
    """A head that keeps what it is given."""

    @staticmethod
    def answer(options: Any) -> str:
        return "spans"

    @staticmethod
    def answer_settings(options: Any) -> dict[str, Any]:
        return {"scheme": options["scheme"]}

    def __init__(self, labels: Any, dim: int, *, scheme: str = "IOB2"):
        super().__init__()
        self.labels, self.given, self.weight = labels, dim, nn.Parameter(torch.zeros(1))

    def loss(self, tags: Tensor, total: Tensor) -> Tensor:
        return total.sum() * 0 + tags.sum() + self.weight.sum()

    def decide(
        self, mask: Tensor, total: Tensor, x: Tensor, *, many: Size = 2, scale: float = 0.5
    ) -> dict[str, Tensor]:
        zero = mask.float() * scale
        return {"tags": mask.long() * 0, "scores": zero, "opens": zero, "closes": zero, "x": x, "total": total}

    def score(self, tags: Tensor, x: Tensor) -> Tensor:
        return x.sum((1, 2)) + tags.sum(1)


TOYS = {"lengths": ("embedding", Lengths), "sums": ("encoder", Sums), "shows": ("head", Shows)}
STAGES = ("embedding={use: lengths}", "encoder=[{use: sums, times: 3}, {use: sums}]", "head={use: shows}")


def built(config: Config) -> Pipeline:
    torch.manual_seed(0)
    return Pipeline(config, fit_artifacts(config, read(config.data.reader, config.data.train)))


def toy(folder: Path, *overrides: str, **toys: tuple[str, type]) -> Pipeline:
    return built(tiny(folder, *STAGES, *overrides, **{**TOYS, **toys}))


def test_each_stage_is_given_what_its_parameters_name(tmp_path: Path) -> None:
    pipeline = toy(tmp_path)
    decision = pipeline.decide(FEATURES, {})
    sizes = [[len(pipeline.artifacts.vocabulary[i]) for i in row] for row in FEATURES["ids"].tolist()]
    x = torch.stack([FEATURES["ids"], torch.tensor(sizes)], -1).float()
    assert torch.equal(decision["x"], 3 * x)
    assert torch.equal(decision["total"], 3 * (x * FEATURES["mask"][..., None]).sum(1))
    assert pipeline.head.labels == pipeline.artifacts.tasks[0].labels
    tags = torch.ones(B, T).long()
    assert pipeline.loss({**FEATURES, "tags": tags}).item() == B * T
    assert torch.equal(pipeline.score(FEATURES, {"tags": tags}), 3 * x.sum((1, 2)) + T)


def test_embeddings_are_concatenated_in_their_order_and_their_widths_added(tmp_path: Path) -> None:
    pipeline = toy(tmp_path, "embedding=[{use: lengths}, {use: lookup, dim: 5}]", "encoder=sums")
    x = pipeline.decide(FEATURES, {})["x"]
    assert pipeline.head.given == 7
    assert torch.equal(x[..., 0].long(), FEATURES["ids"])
    assert torch.equal(x[..., 2:], pipeline.embedding[1](FEATURES["ids"])["x"])


def test_decode_options_have_the_defaults_of_the_signature(tmp_path: Path) -> None:
    config = tiny(tmp_path, *STAGES, **TOYS)
    assert option_table(config.head[0]) == {
        "many": {"type": "size", "default": 2, "minimum": 1, "maximum": 100_000},
        "scale": {"type": "float", "default": 0.5, "minimum": None, "maximum": None},
    }
    pipeline = built(config)
    assert pipeline.decide(FEATURES, {})["scores"].max() == 0.5
    assert pipeline.decide(FEATURES, {"scale": torch.tensor(0.25)})["scores"].max() == 0.25


def test_a_frozen_stage_learns_nothing_and_the_others_do(tmp_path: Path) -> None:
    pipeline = built(tiny(tmp_path, "embedding.0.freeze=true", "encoder.freeze=true"))
    learning = {name.split(".")[0] for name, parameter in pipeline.named_parameters() if parameter.requires_grad}
    assert learning == {"embedding", "heads"}
    assert not any(parameter.requires_grad for parameter in pipeline.embedding[0].parameters())
    assert all(parameter.requires_grad for parameter in pipeline.embedding[1].parameters())


def test_the_predictor_answers_without_dropout_and_leaves_training_mode_as_it_was(
    tmp_path: Path,
) -> None:
    config = tiny(tmp_path, "encoder.dropout=0.5", "head.dropout=0.5")
    pipeline = built(config)
    calls: list[int] = []
    answers = predictor(pipeline, config, before=lambda: calls.append(1))
    records = read(config.data.reader, config.data.dev or tmp_path)
    pipeline.train()
    together = list(answers.stream(records))
    assert pipeline.training
    assert len(calls) == 1
    assert list(answers.stream(records)) == together  # dropout is off
    assert same_answer([next(answers.stream([record])) for record in records], together)


def faulty(change: str, base: type = Sums) -> type:
    """An encoder with one fault, planted."""

    class Faulty(base):  # type: ignore[misc,valid-type]
        """Is not as it should be."""

        def __init__(self, dim: int, *, times: int = 1):
            super().__init__(dim, times=times)
            if change == "raises when built":
                raise ZeroDivisionError("of course")
            if change == "no dim":
                del self.dim
            if change == "dim is no int":
                self.dim = 2.0
            if change == "wrong dim":
                self.dim = dim + 1

        def forward(self, x: Tensor, mask: Tensor) -> Any:
            returned = super().forward(x, mask)
            if change == "raises":
                raise IndexError("too far")
            if change == "two axes":
                return returned | {"x": returned["x"][0]}
            if change == "nothing":
                return None
            if change == "not what it states":
                return {"x": returned["x"]}
            return returned

    return Faulty


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("raises when built", "its constructor raised ZeroDivisionError: of course"),
        ("no dim", "it must set its width as `self.dim`, an int"),
        ("dim is no int", "it must set its width as `self.dim`, an int"),
        ("wrong dim", r"`forward` returned x of shape \(2, 3, 2\), not \(B, T, 3\) as declared"),
        ("raises", r"`forward` raised IndexError: too far \(--debug shows where\)"),
        ("two axes", r"`forward` returned x of shape \(3, 2\), not \(B, T, 2\) as declared"),
        ("nothing", "`forward` returned no tensor 'x', which its `returns` declares"),
        ("not what it states", "`forward` returned no tensor 'total', which its `returns` declares"),
    ],
)
def test_a_stage_with_a_fault_is_named_with_its_distribution(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(PluginError, match=f"^encoder.1: encoder 'faulty' of toys: {message}"):
        toy(tmp_path, "encoder=[{use: sums}, {use: faulty}]", faulty=("encoder", faulty(change))).decide(FEATURES, {})
    toy(tmp_path, "encoder=[{use: sums}, {use: faulty}]", faulty=("encoder", faulty("none"))).decide(FEATURES, {})


def test_an_embedding_of_another_width_than_it_states_is_named(tmp_path: Path) -> None:
    class Wide(Lengths):
        """States too much."""

        def __init__(self, vocabulary: Any):
            super().__init__(vocabulary)
            self.dim = 9

    with pytest.raises(
        PluginError, match=r"embedding: embedding 'wide' of toys: .*\(2, 3, 2\), not \(B, T, 9\) as declared"
    ):
        toy(tmp_path, "embedding=wide", wide=("embedding", Wide)).decide(FEATURES, {})


def test_a_head_that_raises_or_decides_too_little_is_named(tmp_path: Path) -> None:
    class Silent(Shows):
        """Forgets an output."""

        def loss(self, tags: Tensor, total: Tensor) -> Tensor:
            raise DataError("a component may say so itself")

        def decide(self, mask: Tensor) -> dict[str, Tensor]:
            return {"tags": mask.long(), "scores": mask.float(), "opens": mask.float()}

        def score(self, x: Tensor) -> Tensor:
            raise RuntimeError("no")

    pipeline = toy(tmp_path, "head=silent", silent=("head", Silent))
    with pytest.raises(PluginError, match="head: head 'silent' of toys: `decide` returned no 'closes'"):
        pipeline.decide(FEATURES, {})
    with pytest.raises(PluginError, match="'silent' of toys: `score` raised RuntimeError: no"):
        pipeline.score(FEATURES, {})
    with pytest.raises(DataError, match="a component may say so itself"):
        pipeline.loss({**FEATURES, "tags": FEATURES["ids"]})


def test_a_stage_that_is_no_module_is_named(tmp_path: Path) -> None:
    class Plain:
        """No nn.Module."""

        def __init__(self, dim: int):
            self.dim = dim

        def forward(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(PluginError, match=r"encoder 'plain' of toys: it is not a torch\.nn\.Module"):
        toy(tmp_path, "encoder=plain", "head=crf", plain=("encoder", Plain))


def test_a_loss_takes_a_gradient_through_every_stage(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    records = read(config.data.reader, config.data.train)
    artifacts = fit_artifacts(config, records)
    pipeline = Pipeline(config, artifacts)
    batches = Batches(artifacts, examples(config, artifacts, records), 64, None, 1)
    pipeline.loss(batches(batches.order(0)[0])).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in pipeline.parameters())
