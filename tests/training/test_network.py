"""Stages are wired by the names of their parameters, and a stage that does not do what it states is named."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tiny_pipelines import build_parts, load_tagger
from torch import Tensor, nn

from seqpipe.answers.classification import LabelTask
from seqpipe.answers.extractive_span import ExtractiveSpanTask
from seqpipe.answers.tagging import SpansTask
from seqpipe.answers.text import TextTask
from seqpipe.errors import ConfigError, DataError, PluginError
from seqpipe.plugin import Size
from seqpipe.runtime.opened import same_answer
from seqpipe.training.datasets import load_records
from seqpipe.training.evaluation import option_table, predictor
from seqpipe.training.network import Network, score_gap

B, T = 2, 3
FEATURES = {"ids": torch.tensor([[4, 5, 6], [7, 0, 0]]), "mask": torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()}


class Lengths(nn.Module):
    """A word's vector is its id and its number of characters."""

    def __init__(self, vocabulary: Any):
        super().__init__()
        self.dim, self.tokens = 2, vocabulary

    def forward(self, ids: Tensor) -> Tensor:
        lengths = torch.tensor([[len(self.tokens[i]) for i in row] for row in ids.tolist()])
        return torch.stack([ids, lengths], -1).float()


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
    """A head that keeps its arguments."""

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


def toy(folder: Path, *overrides: str, **toys: tuple[str, type]) -> Network:
    return build_parts(load_tagger(folder, *STAGES, *overrides, **{**TOYS, **toys}))[0]


def test_each_stage_is_given_what_its_parameters_name(tmp_path: Path) -> None:
    network = toy(tmp_path)
    decision = network.decide(FEATURES, {})
    sizes = [[len(network.artifacts.vocabulary[i]) for i in row] for row in FEATURES["ids"].tolist()]
    x = torch.stack([FEATURES["ids"], torch.tensor(sizes)], -1).float()
    assert torch.equal(decision["x"], 3 * x)
    assert torch.equal(decision["total"], 3 * (x * FEATURES["mask"][..., None]).sum(1))
    assert network.head.labels == network.artifacts.tasks[0].labels
    tags = torch.ones(B, T).long()
    assert network.loss({**FEATURES, "tags": tags}).item() == B * T
    assert torch.equal(network.score(FEATURES, {"tags": tags}), 3 * x.sum((1, 2)) + T)


def test_embeddings_are_concatenated_in_their_order_and_their_widths_added(tmp_path: Path) -> None:
    network = toy(tmp_path, "embedding=[{use: lengths}, {use: lookup, dim: 5}]", "encoder=sums")
    x = network.decide(FEATURES, {})["x"]
    assert network.head.given == 7
    assert torch.equal(x[..., 0].long(), FEATURES["ids"])
    assert torch.equal(x[..., 2:], network.embedding[1](FEATURES["ids"])["x"])


def test_decode_options_have_the_defaults_of_the_signature(tmp_path: Path) -> None:
    network, _ = build_parts(load_tagger(tmp_path, *STAGES, **TOYS))
    assert option_table(network) == {
        "many": {"type": "size", "default": 2, "minimum": 1, "maximum": 100_000},
        "scale": {"type": "float", "default": 0.5, "minimum": None, "maximum": None},
    }
    assert network.decide(FEATURES, {})["scores"].max() == 0.5
    assert network.decide(FEATURES, {"scale": torch.tensor(0.25)})["scores"].max() == 0.25


def test_the_predictor_answers_without_dropout_and_leaves_training_mode_as_it_was(tmp_path: Path) -> None:
    config = load_tagger(tmp_path, "encoder.locked_dropout=0.5", "head.dropout=0.5")
    network, _ = build_parts(config)
    calls: list[int] = []
    model = predictor(network, before=lambda: calls.append(1))
    records = load_records(config.data.reader, config.data.dev or tmp_path)
    network.train()
    together = list(model.stream(records))
    assert network.training
    assert len(calls) == 1
    assert list(model.stream(records)) == together  # dropout is off
    assert same_answer([next(model.stream([record])) for record in records], together)


def faulty(width: Any = 2, returned: Callable[[dict[str, Tensor]], Any] | None = None) -> type:
    """An encoder with another `dim`, or another result of `forward`."""

    class Faulty(Sums):
        def __init__(self, dim: int):
            super().__init__(dim)
            self.dim = width(dim) if callable(width) else width
            if width is None:
                del self.dim

        def forward(self, x: Tensor, mask: Tensor) -> Any:
            outputs = super().forward(x, mask)
            return returned(outputs) if returned else outputs

    return Faulty


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (faulty(lambda dim: dim // 0), "its constructor raised ZeroDivisionError: integer"),
        (faulty(None), "it must set its width as `self.dim`, an int"),
        (faulty(2.0), "it must set its width as `self.dim`, an int"),
        (faulty(3), r"`forward` returned x of shape \(2, 3, 2\), not \(B, T, 3\) as declared"),
        (faulty(2, lambda outputs: outputs["y"]), r"`forward` raised KeyError: 'y' \(--debug shows where\)"),
        (
            faulty(2, lambda outputs: outputs | {"x": outputs["x"][0]}),
            r"`forward` returned x of shape \(3, 2\), not \(B, T, 2\) as declared",
        ),
        (faulty(2, lambda outputs: None), "`forward` returned no tensor 'x', which its `returns` declares"),
        (
            faulty(2, lambda outputs: {"x": outputs["x"]}),
            "`forward` returned no tensor 'total', which its `returns` declares",
        ),
    ],
)
def test_a_stage_with_a_fault_is_named_with_its_distribution(tmp_path: Path, change: type, message: str) -> None:
    chain = "encoder=[{use: sums}, {use: faulty}]"
    with pytest.raises(PluginError, match=f"^encoder.1: encoder 'faulty' of toys: {message}"):
        toy(tmp_path, chain, faulty=("encoder", change)).decide(FEATURES, {})
    toy(tmp_path, chain, faulty=("encoder", faulty())).decide(FEATURES, {})


def test_weights_beyond_the_memory_name_the_largest_size(tmp_path: Path) -> None:
    class Large(Sums):
        def __init__(self, dim: int, *, hidden: int = 7, layers: int = 2):
            super().__init__(dim)
            torch.empty(1 << 60)

    message = "encoder 'faulty' of toys: its weights do not fit into memory; lower hidden, which is 7"
    with pytest.raises(ConfigError, match=message):
        toy(tmp_path, "encoder={use: faulty}", faulty=("encoder", Large))


def test_an_embedding_of_another_width_than_it_states_is_named(tmp_path: Path) -> None:
    class Wide(Lengths):
        def __init__(self, vocabulary: Any):
            super().__init__(vocabulary)
            self.dim = 9

    message = r"embedding: embedding 'wide' of toys: .*\(2, 3, 2\), not \(B, T, 9\) as declared"
    with pytest.raises(PluginError, match=message):
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

    network = toy(tmp_path, "head=silent", silent=("head", Silent))
    with pytest.raises(PluginError, match="head: head 'silent' of toys: `decide` returned no 'closes'"):
        network.decide(FEATURES, {})
    with pytest.raises(PluginError, match="'silent' of toys: `score` raised RuntimeError: no"):
        network.score(FEATURES, {})
    with pytest.raises(DataError, match="a component may say so itself"):
        network.loss({**FEATURES, "tags": FEATURES["ids"]})


def test_a_stage_that_is_no_module_is_named(tmp_path: Path) -> None:
    class Plain:
        def __init__(self, dim: int):
            self.dim = dim

        def forward(self, x: Tensor) -> Tensor: ...

    with pytest.raises(PluginError, match=r"encoder 'plain' of toys: it is not a torch\.nn\.Module"):
        toy(tmp_path, "encoder=plain", "head=crf", plain=("encoder", Plain))


# What tells a tie from an error: the difference of the model's scores of the decisions of PyTorch and of the graph.

LOG_P = torch.randn(9, 6, generator=torch.Generator().manual_seed(1)).log_softmax(1)  # of 6 tokens at 9 places


def score_of_text(decision: Mapping[str, Tensor]) -> Tensor:
    """The log-probability of the first text, place by place."""
    tokens = decision["tokens"][:, 0]
    return LOG_P[: tokens.shape[1]].gather(1, tokens.T).sum(0)


def texts(*rows: Any) -> dict[str, Tensor]:
    return {"tokens": torch.tensor(rows)}


def gaps_of_texts(first: dict[str, Tensor], second: dict[str, Tensor]) -> list[float]:
    return score_gap(TextTask.choices, True, score_of_text, first, second).tolist()


def gap(place: int, a: int, b: int) -> float:
    return float(abs(LOG_P[place, a] - LOG_P[place, b]))


def test_the_gap_of_texts_is_that_of_their_first_tokens_that_differ_or_of_their_scores() -> None:
    first, second = texts([[1, 2, 3, 4]]), texts([[1, 5, 1, 1]])
    whole = float(abs(score_of_text(first) - score_of_text(second)))
    assert gaps_of_texts(first, second) == pytest.approx([min(gap(1, 2, 5), whole)])
    assert gap(1, 2, 5) != pytest.approx(whole)
    # Behind a token that differs greatly another may make up for it: beams choose so.
    assert gaps_of_texts(first, texts([[1, 2, 3, 5]])) == pytest.approx([gap(3, 4, 5)])


def test_each_row_has_another_place_where_it_differs() -> None:
    first, second = texts([[1, 2, 3]], [[1, 2, 3]], [[1, 2, 3]]), texts([[1, 2, 3]], [[1, 4, 3]], [[5, 2, 3]])
    assert gaps_of_texts(first, second) == pytest.approx([0.0, gap(1, 2, 4), gap(0, 1, 5)])


def test_the_first_of_several_texts_that_differ_are_compared_not_the_best() -> None:
    first, second = texts([[1, 2], [3, 4], [5, 1]]), texts([[1, 2], [3, 1], [5, 1]])
    assert gaps_of_texts(first, second) == pytest.approx([gap(1, 4, 1)])
    assert gap(1, 4, 1) > 1e-4


def test_the_second_best_path_of_tags_has_its_own_score_and_a_span_its_start_and_end_of_one_rank() -> None:
    def score_of_tags(decision: Mapping[str, Tensor]) -> Tensor:
        return decision["tags"].sum(1).float()

    def score_of_span(decision: Mapping[str, Tensor]) -> Tensor:
        return (10 * decision["starts"][:, 0] + decision["ends"][:, 0]).float()

    tags = {"tags": torch.tensor([[0, 1, 2]]), "paths": torch.tensor([[[0, 1, 2], [2, 2, 2]]])}
    other = tags | {"paths": torch.tensor([[[0, 1, 2], [2, 2, 0]]])}
    assert score_gap(SpansTask.choices, False, score_of_tags, tags, other).item() == 2
    assert score_gap(SpansTask.choices, False, score_of_tags, tags, tags).item() == 0
    span = {"starts": torch.tensor([[1, 3]]), "ends": torch.tensor([[2, 4]])}
    other = span | {"ends": torch.tensor([[2, 6]])}
    assert score_gap(ExtractiveSpanTask.choices, False, score_of_span, span, other).item() == 2


def test_an_output_without_a_score_is_never_a_tie_and_a_cache_is_no_decision() -> None:
    first = {"label": torch.tensor([1, 1]), "noted": torch.tensor([0, 0]), "present.ids": torch.tensor([[1], [2]])}
    second = first | {"noted": torch.tensor([0, 5]), "present.ids": torch.tensor([[1], [3]])}
    gaps = score_gap(LabelTask.choices, False, lambda decision: torch.zeros(2), first, second)
    assert gaps.tolist() == [0.0, math.inf]
    text = {**texts([[1]], [[1]]), "scores": torch.zeros(2, 1)}
    assert gaps_of_texts(text | first, text | second) == [0.0, math.inf]
