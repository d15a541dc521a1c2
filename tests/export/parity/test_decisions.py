"""The comparison of PyTorch and onnxruntime sees every difference, and calls a tie a tie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_pipelines import build_parts, load_tagger, write_seq2seq

from seqpipe.config.loader import load_config
from seqpipe.errors import ParityError
from seqpipe.export.graph import RANDOM_LENGTHS, RANDOM_SIZES, random_batches
from seqpipe.export.parity.decisions import MAX_GAP, DecisionParity, Judge, Tally, Trials
from seqpipe.features.document import Arrays
from seqpipe.nn.layers import EOS_ID
from seqpipe.runtime.decode_options import option_arrays
from seqpipe.runtime.predictor import Run
from seqpipe.training.evaluation import decide, option_table, predictor
from seqpipe.training.network import Network
from seqpipe_plugins.encoders.bag import Bag

Change = Callable[[Arrays, Arrays], None]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Run]:
    """A pipeline with random weights, and how PyTorch runs it."""
    config = load_tagger(tmp_path_factory.mktemp("parity"), "head=tags")
    network, _ = build_parts(config)
    return network, predictor(network).run


def compared(both: tuple[Network, Run], change: Change, shapes: Any = ((3,), (7,)), fault: bool = False) -> Tally:
    """The tally when the other side's decision is PyTorch's, changed; with a fault there is no float64."""
    network, run = both

    def changed(feeds: Arrays) -> Arrays:
        decision = {name: np.array(array) for name, array in run(feeds).items()}
        change(feeds, decision)
        return decision

    parity = DecisionParity(network, run, changed, {})
    if fault:
        parity.judge.compute = lambda compute: None
    for feeds in random_batches(network.artifacts, 0, *shapes):
        parity.compare(feeds, {})
    return parity.tally


def score_off(difference: float) -> Change:
    """Scores are off by so much."""
    return lambda feeds, decision: decision["scores"].__iadd__(np.float32(difference))


def next_tag(feeds: Arrays, decision: Arrays) -> None:
    decision["tags"][0, 0] = (decision["tags"][0, 0] + 1) % 5


def test_the_same_answers_are_the_same_and_a_difference_within_the_tolerance_is_reported(
    both: tuple[Network, Run],
) -> None:
    tally = compared(both, lambda feeds, decision: None, (RANDOM_SIZES[:4], RANDOM_LENGTHS[:4]))
    tally.check()
    assert (tally.decisions, tally.different, tally.ties) == (4 * sum(RANDOM_SIZES[:4]), 0, 0)
    tally = compared(both, score_off(1e-5))
    tally.check()
    assert tally.worst == pytest.approx(1e-5, rel=0.3)


def test_the_grid_is_ragged_and_has_every_size_and_length(both: tuple[Network, Run]) -> None:
    feeds = list(random_batches(both[0].artifacts, 1))
    assert [array["ids"].shape for array in feeds] == [(B, T) for B in RANDOM_SIZES for T in RANDOM_LENGTHS]
    assert all(array["mask"][0].all() for array in feeds)
    assert not feeds[-1]["mask"].all()
    assert all(not array["ids"][~array["mask"]].any() for array in feeds)
    assert len(np.unique(feeds[-1]["ids"])) == both[0].artifacts.featurizer.tokenizer.get_vocab_size()


def nan(feeds: Arrays, decision: Arrays) -> None:
    decision["scores"][0, 0] = np.nan


def leaks(feeds: Arrays, decision: Arrays) -> None:
    decision["scores"] += np.where(feeds["mask"], 0, feeds["ids"]).sum(1, keepdims=True) * np.float32(0.01)


def depends_on_other_rows(feeds: Arrays, decision: Arrays) -> None:
    decision["opens"] += feeds["ids"].sum(1, keepdims=True) * (not feeds["mask"].all()) * 1e-2


PLANTED = [
    (next_tag, "tags"),
    (score_off(3e-4), "scores differs by 0.0003"),
    (nan, "scores differs by nan"),
    (lambda feeds, decision: decision.update(tags=decision["tags"][:, :-1]), r"tags: shape \(3, 6\), not \(3, 7\)"),
    (depends_on_other_rows, "opens differs by"),
]


@pytest.mark.parametrize(("change", "message"), PLANTED)
def test_a_planted_difference_is_found_and_reported_with_its_shape(both: Any, change: Change, message: str) -> None:
    tally = compared(both, change)
    assert 0 < tally.different <= tally.decisions
    with pytest.raises(ParityError, match=rf"decisions differ .*({message}).*, at shape \(3, 7\)"):
        tally.check()


def test_an_output_that_depends_on_the_padding_is_found(both: tuple[Network, Run]) -> None:
    with pytest.raises(ParityError, match=r"scores differs by .* \(with other values in the padding\)"):
        compared(both, leaks).check()
    assert compared(both, leaks, ((1,), (7,))).different == 0  # one row has no padding: nothing to read


def test_an_answer_that_changes_with_the_batch_around_it_is_found(both: tuple[Network, Run]) -> None:
    tally = compared(both, lambda feeds, decision: score_off(0.01 * (len(feeds["mask"]) == 1))(feeds, decision))
    assert (tally.decisions, tally.different) == (3, 1)
    with pytest.raises(ParityError, match=r"scores differs by 0\.01 \(a row alone, without the batch around it\)"):
        tally.check()


def test_a_run_that_fails_is_a_difference(both: tuple[Network, Run]) -> None:
    def fails(feeds: Arrays, made: Arrays) -> None:
        raise RuntimeError("Non-zero status code returned while running Add node")

    with pytest.raises(ParityError, match=r"onnxruntime fails at shape \(3, 7\), but PyTorch answers: Non-zero"):
        compared(both, fails)


def equal_tags(folder: Path, best: float = 0.0) -> tuple[Network, Run]:
    """A pipeline to which every tag is as good as any other, but for the first."""
    config = load_tagger(folder, "head=tags")
    network, _ = build_parts(config)
    with torch.no_grad():
        network.head.emissions.weight.zero_()
        network.head.emissions.bias.zero_()[0] = best
    return network, predictor(network).run


def test_equally_good_decisions_are_counted_as_ties_and_many_of_them_are_refused(tmp_path: Path) -> None:
    network, run = equal_tags(tmp_path)

    def another(feeds: Arrays, decision: Arrays) -> None:
        decision["tags"][0, 0] = 1

    tally = compared((network, run), another, ((7,), (5,)))
    assert (tally.decisions, tally.ties, tally.different) == (7, 1, 0)
    DecisionParity(network, run, run, {}, tally).resolve_ties()  # one of a thousand is
    assert (tally.decisions >= 1_000, tally.ties) == (True, 1)
    tally = compared((network, run), another, ((7, 7), (5,)))
    assert tally.ties == 2
    with pytest.raises(ParityError, match=r"2 of 1,?0\d\d decisions have margins under 0\.0001"):
        DecisionParity(network, run, run, {}, tally).resolve_ties()


def test_a_tie_is_one_in_the_models_own_score_only(tmp_path: Path) -> None:
    def another(feeds: Arrays, decision: Arrays) -> None:
        decision["tags"][0, 0] = len(decision["tags"]) > 1

    tally = compared(equal_tags(tmp_path, 1e-3), another)
    assert (tally.ties, tally.different) == (0, 1)


def test_a_head_may_say_itself_how_near_it_was_to_the_decision_of_the_graph(
    both: tuple[Network, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = []
    for margin, ties in ((2e-4, 1), (3e-4, 0)):  # 1e-4 times the root of 7 tags is between them

        def stated(x: torch.Tensor, tags: torch.Tensor, other_tags: torch.Tensor, m: float = margin) -> torch.Tensor:
            pairs.append((tags[0, 0].item(), other_tags[0, 0].item()))
            return x.new_full((x.shape[0],), m)

        monkeypatch.setattr(both[0].head, "margin", stated, raising=False)
        tally = compared(both, next_tag, ((1,), (7,)))
        assert (tally.ties, tally.different) == (ties, 1 - ties)
    assert all(other == (tag + 1) % 5 for tag, other in pairs)


@pytest.fixture(scope="module")
def writes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Run]:
    return random_writer(tmp_path_factory.mktemp("parity"))


def random_writer(folder: Path) -> tuple[Network, Run]:
    """A pipeline with random weights that writes texts of 100 tokens, whatever it reads."""
    config = load_config(write_seq2seq(folder))
    network, _ = build_parts(config)
    with torch.no_grad():
        network.head.vocabulary.output.bias[EOS_ID] = -100.0
    run, defaults = predictor(network).run, option_arrays(option_table(network), {})
    return network, lambda feeds: run(defaults | feeds)


def test_the_score_of_a_text_may_be_off_by_the_root_of_its_length_times_as_much(writes: tuple[Network, Run]) -> None:
    network, run = writes
    decision = run(next(random_batches(network.artifacts, 0, (3,), (7,))))
    assert ((decision["tokens"] != 0).sum(2) == 100).all()
    allowed = 10 * 1e-4 + 1e-5 * float(np.abs(decision["scores"]).min())
    for off, different in ((0.9 * allowed, 0), (1.5 * allowed, 3)):
        assert compared(writes, score_off(off), fault=True).different == different
        assert compared(writes, score_off(off)).different == 3  # float64 shows that PyTorch itself is nearer


def test_equally_likely_texts_of_a_hundred_tokens_may_change_places(
    writes: tuple[Network, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum of a hundred log-probabilities is less exact than one: margins grow with the root of their number."""

    def another(feeds: Arrays, decision: Arrays) -> None:
        decision["tokens"][0, 0, 50] = 5 + (decision["tokens"][0, 0, 50] == 5)

    for margin, ties in ((8e-4, 1), (1.2e-3, 0)):
        stated = lambda x, m=margin: x.new_full((x.shape[0],), m)  # noqa: E731
        monkeypatch.setattr(writes[0].head, "margin", stated, raising=False)
        tally = compared(writes, another, ((1,), (7,)))
        assert (tally.ties, tally.different) == (ties, 1 - ties)


def test_scores_as_near_to_float64_as_pytorchs_are_right_and_counted(tmp_path: Path) -> None:
    """A graph that loses as many digits as float32, where numbers cancel out, is right; one that is off is not."""
    network, run = random_writer(tmp_path)
    with torch.no_grad():
        network.head.vocabulary.output.bias.add_(1e3)
    judge = Judge(network, {})
    differences: list[float] = []

    def rounds_otherwise(feeds: Arrays, decision: Arrays) -> None:
        decision.update(judge.noisily(lambda network: decide(network, feeds, {}))[-1])
        differences.append(float(np.abs(decision["scores"] - run(feeds)["scores"]).max()))

    shapes = ((1, 7), (5, 31))
    tally = compared((network, run), rounds_otherwise, shapes)
    tally.check()
    assert max(differences) > 10 * MAX_GAP
    assert 0 < tally.rounded < tally.decisions
    off = 30 * max(differences)
    tally = compared((network, run), score_off(off), shapes)
    assert tally.different > 0
    with pytest.raises(ParityError) as caught:
        tally.check()
    evidence = caught.value.evidence
    assert {"input.ids", "input.mask", "pytorch.scores", "onnxruntime.scores", "float64.scores"} <= evidence.keys()
    assert evidence["float64.scores"].dtype == np.float64
    row = evidence["rows.different"][0]
    assert np.abs(evidence["onnxruntime.scores"] - evidence["float64.scores"])[row].max() > off / 2
    assert caught.value.outputs == ["scores"]


def test_float64_is_no_reference_where_it_is_farther_than_roundings_explain(both: tuple[Network, Run]) -> None:
    network, run = both

    def off(arrays: Arrays, difference: Any) -> Arrays:
        return {name: array + difference if name == "scores" else array for name, array in arrays.items()}

    feeds = next(random_batches(network.artifacts, 0, (3,), (7,)))
    for far in (0.0, 0.05):  # 4 times an error of 0.05 would hide the fault
        parity = DecisionParity(network, run, lambda feeds: off(run(feeds), np.float32(5e-3)), {})
        decide = parity.judge.decide
        parity.judge.decide = lambda inputs, explain=False, far=far, decide=decide: off(decide(inputs, explain), far)
        parity.compare(feeds, {})
        assert (parity.tally.different, parity.tally.rounded) == (3, 0)


def test_copies_with_other_roundings_differ_in_the_last_bit_of_weights_and_in_no_whole_number(tmp_path: Path) -> None:
    network, _ = build_parts(load_tagger(tmp_path, "head=tags"))
    network.head.order = torch.nn.Parameter(torch.arange(5), requires_grad=False)
    judge = Judge(network, {})
    copies = judge.noisily(lambda copied: (copied.head.order.clone(), copied.head.emissions.weight.clone()))
    weight = network.head.emissions.weight.detach()
    assert all(torch.equal(order, torch.arange(5)) for order, _ in copies)
    moved = [((noisy - weight).abs() / weight.abs()).max().item() for _, noisy in copies]
    assert all(0 < most < 2.5e-7 for most in moved)
    assert not torch.equal(copies[0][1], copies[1][1])
    assert (judge.noisily(lambda copied: 1 / 0), judge.fault) == ([], "ZeroDivisionError: division by zero")


@pytest.mark.parametrize("message", ["mat1 and mat2 must have the same dtype", "scores is float32, not float64"])
def test_a_head_without_float64_is_judged_by_a_fixed_bound_and_named(
    both: tuple[Network, Run], monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    network, _ = both
    feeds, judge = next(random_batches(network.artifacts, 0, (3,), (7,))), Judge(network, {})
    assert (judge.decide(feeds)["scores"].dtype, judge.fault) == (np.float64, "")
    decide = type(network.head).decide

    def fails(self: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
        return decide(self, x.float(), mask)

    def rounds(self: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
        decision = decide(self, x, mask)
        return {**decision, "scores": decision["scores"].float()}

    monkeypatch.setattr(type(network.head), "decide", rounds if "scores" in message else fails)
    judge = Judge(network, {})
    assert "scores" not in judge.decide(feeds)
    assert message in judge.fault
    for off, different in ((8e-5, 0), (4e-4, 3)):  # 1e-4 times the root of at most 7 tags is between them
        assert compared(both, score_off(off)).different == different
    assert torch.get_default_dtype() is torch.float32


def test_tags_of_equal_vectors_tie_by_construction_and_the_refusal_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bag, "context", "both")  # else a YAML with tags after it is refused
    constructed = r"equal\. All tokens of a text have the same vector, .* tie by construction"
    for encoder, message in (("bag", constructed), ("lstm", "equal$")):
        network, _ = build_parts(load_tagger(tmp_path, f"encoder={encoder}", "head=tags"))
        parity = DecisionParity(network, dict, dict, {}, Tally(decisions=1_000, ties=5))
        with pytest.raises(ParityError, match=f"too many to call them {message}"):
            parity.resolve_ties()


def test_texts_of_random_input_are_short_unless_another_length_is_chosen() -> None:
    defaults = {"max_length": 100, "b.max_length": 5, "beams": 1}
    options = {name: {"type": "size", "default": default} for name, default in defaults.items()}
    trials = Trials(options, {name: [{name: 8}] for name in ("max_length", "b.max_length")})
    assert trials.with_short_texts({}) == {"max_length": 8, "b.max_length": 5}
    assert trials.with_short_texts({"max_length": 3, "beams": 2}) == {"max_length": 3, "b.max_length": 5, "beams": 2}
