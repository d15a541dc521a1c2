"""The CRF against the sum over every path and pytorch-crf, in PyTorch and as a graph."""

import itertools
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torchcrf
from exported_graphs import ExportedGraph, export, meta_device, ragged_mask
from torch import Tensor

from seqpipe.answers.tagging_schemes import allowed, continues
from seqpipe.errors import UsageError
from seqpipe.nn.calibration import GRID
from seqpipe_plugins.heads.crf import CRF

LABELS = ("O", "B-a", "E-a", "I-a", "S-a")
MASK = ragged_mask(5, 1, 3)
AXES = {"x": ("b", "t"), "mask": ("b", "t"), "n": ("n",)}
GOLD = torch.tensor([[0, 1, 3, 2, 0], [4, 0, 0, 0, 0], [1, 2, 4, 0, 0]])


def head(seed: int = 0, scale: float = 1.0, temperature: float = 1.0, **options: Any) -> CRF:
    torch.manual_seed(seed)
    crf = CRF(6, LABELS, **options).double()
    for transitions in (crf.start_transitions, crf.end_transitions, crf.transitions):
        torch.nn.init.normal_(transitions)
    with torch.no_grad():
        crf.emissions.weight.mul_(scale)
        crf.temperature.fill_(temperature)
    return crf


def library(crf: CRF, x: Tensor) -> tuple[torchcrf.CRF, Tensor]:
    """pytorch-crf's CRF with the head's transitions, and the head's emissions, both at its temperature."""
    peer = torchcrf.CRF(len(LABELS), batch_first=True).double()
    L, forbidden, T = len(LABELS), crf.forbidden, crf.temperature.item()
    with torch.no_grad():
        peer.start_transitions.copy_(crf.start_transitions / T + forbidden[L, :L])
        peer.end_transitions.copy_(crf.end_transitions / T + forbidden[:L, L])
        peer.transitions.copy_(crf.transitions / T + forbidden[:L, :L])
    return peer, crf.emissions(x) / T


def enumerated(crf: CRF, x: Tensor, span_continues: np.ndarray) -> dict[str, Any]:
    """All there is to know of one row (T, D), summed over every sequence of tags."""
    peer, emissions = library(crf, x)
    e, (T, L) = emissions.detach().numpy(), emissions.shape
    start, end, steps = (p.detach().numpy() for p in peer.parameters())
    tags = np.array(list(itertools.product(range(L), repeat=T)))
    scores = start[tags[:, 0]] + end[tags[:, -1]] + e[np.arange(T), tags].sum(1)
    scores += steps[tags[:, :-1], tags[:, 1:]].sum(1)
    log_p = scores - np.logaddexp.reduce(scores)
    order = np.argsort(-log_p, kind="stable")
    best, spans = tags[order[0]], {}
    for i, j in itertools.combinations_with_replacement(range(T), 2):
        same = (tags[:, i : j + 1] == best[i : j + 1]).all(1)
        if j + 1 < T:
            same &= ~span_continues[tags[:, j], tags[:, j + 1]]
        spans[i, j] = np.exp(log_p[same]).sum()
    of_tag = [np.exp(log_p[tags[:, t] == best[t]]).sum() for t in range(T)]
    return {"paths": tags[order], "log_p": log_p[order], "spans": spans, "of_tag": of_tag}


def differences(crf: CRF, span_continues: np.ndarray, n: int = 4) -> dict[str, float]:
    """The difference of a decision from enumeration, by what is compared."""
    x = torch.randn(3, 5, 6).double()
    made = {name: rows.detach().numpy() for name, rows in crf.decide(x, MASK, n_best=n).items()}
    off = dict.fromkeys(("paths", "log_p", "spans", "of_tag"), 0.0)
    for b, length in enumerate(MASK.sum(1).tolist()):
        brute = enumerated(crf, x[b, :length], span_continues)
        k = min(n, int((brute["log_p"] > -1000).sum()))
        assert (made["path_scores"][b, k:] < -1e8).all()
        assert (made["tags"][b] == made["paths"][b, 0]).all()
        spans = {(i, j): np.exp(made["opens"][b, i] + made["closes"][b, j]) for i, j in brute["spans"]}
        news = {
            "paths": (made["paths"][b, :k, :length] != brute["paths"][:k]).sum(),
            "log_p": np.abs(made["path_scores"][b, :k] - brute["log_p"][:k]).max(),
            "spans": max(abs(spans[place] - p) for place, p in brute["spans"].items()),
            "of_tag": np.abs(made["scores"][b, :length] - brute["of_tag"]).max(),
        }
        off = {name: max(off[name], float(news[name])) for name in off}
    return off


@pytest.mark.parametrize("constraints", [True, False])
@pytest.mark.parametrize(("seed", "temperature"), [(0, 1.0), (1, 1.0), (2, 0.3), (3, 2.5), (4, 4.0)])
def test_a_decision_is_what_enumerating_every_path_says(seed: int, temperature: float, constraints: bool) -> None:
    crf = head(seed, 3, temperature, constraints=constraints)
    assert max(differences(crf, continues(LABELS)).values()) < 1e-9


def test_the_temperature_changes_probabilities_and_no_path() -> None:
    x = torch.randn(3, 5, 6).double()
    cold, hot = (head(1, 3, T).decide(x, MASK) for T in (1.0, 2.0))
    assert torch.equal(cold["tags"], hot["tags"])
    assert (hot["path_scores"] < cold["path_scores"] - 0.1).any()
    assert head(1, 3, 2.0).loss(x, MASK, GOLD) == head(1, 3, 1.0).loss(x, MASK, GOLD)


def test_the_likelihoods_of_calibration_are_those_of_every_temperature() -> None:
    crf, x = head(2), torch.randn(3, 5, 6).double()
    found = crf.evidence(x, MASK, GOLD)["losses"]
    for i, T in enumerate(GRID):
        crf.temperature.fill_(T)
        assert torch.allclose(-found[:, i], crf.score(x, MASK, GOLD), atol=1e-4)  # float32 has the temperatures


@pytest.mark.parametrize("sharpness", [0.5, 2.5])
def test_calibration_finds_how_much_too_sure_a_field_is(sharpness: float) -> None:
    crf, x = head(3, calibrate=True), 2 * torch.randn(300, 4, 6).double()
    gold = []
    for row in x:
        brute = enumerated(crf, row, continues(LABELS))
        gold.append(brute["paths"][np.random.default_rng(len(gold)).choice(5**4, p=np.exp(brute["log_p"]))])
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.mul_(sharpness)
    crf.calibrate(crf.evidence(x, ragged_mask(*[4] * 300), torch.from_numpy(np.array(gold))))
    assert crf.calibration()["temperature"] == pytest.approx(sharpness, rel=0.15)


def test_enumeration_sees_planted_faults() -> None:
    assert differences(head(scale=3), np.zeros((5, 5), bool))["spans"] > 1e-3  # every span ends before the next tag
    crf = head(scale=3)
    crf.span_continues.fill_(False)
    assert differences(crf, continues(LABELS))["spans"] > 1e-3
    late = head(scale=3)
    late.forbidden[:, 5] = 0  # sentences that may end within a span
    late.forbidden[5, :5] = torch.tensor([0.0, -1e4, 0.0, 0.0, 0.0])
    assert differences(late, continues(LABELS))["of_tag"] < 1e-9  # judged by its own constraints
    assert not legal(late.decide(torch.randn(40, 5, 6).double(), ragged_mask(*[5] * 40))["tags"], 5)


@pytest.mark.parametrize("constraints", [True, False])
def test_loss_and_gradients_are_those_of_pytorch_crf(constraints: bool) -> None:
    crf, x = head(constraints=constraints), torch.randn(3, 5, 6).double().requires_grad_()
    peer, emissions = library(crf, x)
    losses = crf.loss(x, MASK, GOLD), -peer(emissions, GOLD, MASK, reduction="token_mean")
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-12)
    gradients = []
    for loss, each in zip(losses, (crf, peer), strict=True):
        leaves = [x, crf.emissions.weight, each.start_transitions, each.end_transitions, each.transitions]
        gradients.append(torch.autograd.grad(loss, leaves, retain_graph=True))
    assert all(torch.allclose(ours, expected, atol=1e-12) for ours, expected in zip(*gradients, strict=True))


def test_a_weight_adjusts_the_first_tag_of_each_span_in_training_alone() -> None:
    crf, x = head(class_weights={"a": 3.0, "O": 0.5}), torch.randn(3, 5, 6).double()
    peer, emissions = library(crf, x)
    first = torch.tensor([0.5, 3.0, 1.0, 1.0, 3.0]).log()  # O, B-a and S-a
    expected = -peer(emissions - first, GOLD, MASK, reduction="token_mean")
    assert crf.loss(x, MASK, GOLD).item() == pytest.approx(expected.item(), abs=1e-6)
    assert torch.equal(crf.score(x, MASK, GOLD), head().score(x, MASK, GOLD))
    plain = CRF(6, ("NOUN", "VERB"), scheme="none", class_weights={"VERB": 4.0})
    assert plain.adjustment.tolist() == pytest.approx([0, np.log(4)])


def test_the_best_path_is_pytorch_crf_s_on_long_rows() -> None:
    crf, mask = head(scale=2), ragged_mask(70, 3, 41)
    x = torch.randn(3, 70, 6).double()
    peer, emissions = library(crf, x)
    found = [row[:n].tolist() for row, n in zip(crf.decide(x, mask)["tags"], (70, 3, 41), strict=True)]
    assert found == peer.decode(emissions, mask)


def test_a_score_is_the_log_probability_of_given_tags() -> None:
    crf, x = head(scale=2), torch.randn(3, 5, 6).double()
    made = crf.decide(x, MASK, n_best=3)
    for k in range(3):
        some = made["path_scores"][:, k] > -1e8
        scores = crf.score(x, MASK, made["paths"][:, k])
        assert torch.allclose(scores[some], made["path_scores"][some, k], atol=1e-9)


def legal(tags: Tensor, length: int) -> bool:
    starts, ends, steps = allowed(LABELS)
    return all(
        starts[row[0]] and ends[row[length - 1]] and steps[row[: length - 1], row[1:length]].all()
        for row in tags.numpy()
    )


def test_a_path_never_breaks_the_scheme_however_strong_the_emissions() -> None:
    x, mask = 200 * torch.randn(50, 7, 6), ragged_mask(*[7] * 50)
    made = head().float().decide(x, mask, n_best=20)
    assert legal(made["tags"], 7)
    assert legal(made["paths"][made["path_scores"] > -1e8], 7)
    assert all(rows.isfinite().all() for rows in made.values())
    assert not legal(head(constraints=False).float().decide(x, mask)["tags"], 7)


def test_training_stays_finite_however_wrong_the_model_is() -> None:
    crf, x, gold = head().float(), (300 * torch.randn(3, 5, 6)).requires_grad_(), torch.zeros(3, 5, dtype=torch.int64)
    loss = crf.loss(x, MASK, gold)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in (x, *crf.parameters()))


def test_equal_paths_are_ordered_by_their_last_tags() -> None:
    crf = CRF(6, ("X", "Y", "Z"), scheme="none")
    for p in crf.parameters():
        torch.nn.init.zeros_(p)
    made = crf.decide(torch.randn(1, 3, 6), ragged_mask(3), n_best=4)
    assert made["paths"][0].tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0], [0, 1, 0]]
    assert torch.allclose(made["path_scores"], torch.tensor(1 / 27).log().expand(1, 4))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[CRF, ExportedGraph]:
    crf, path = head(scale=3, temperature=1.6).float(), tmp_path_factory.mktemp("crf") / "crf.onnx"
    example = {"x": torch.randn(3, 5, 6), "mask": MASK, "n": torch.zeros(7)}
    return crf, export(path, crf, lambda x, mask, n: crf.decide(x, mask, n_best=n.shape[0]), AXES, **example)


@pytest.mark.parametrize("n", [1, 2, 6])
@pytest.mark.parametrize("mask", [ragged_mask(1), ragged_mask(12), ragged_mask(2, 9, 1, 9), ragged_mask(120, 60)])
def test_the_graph_decides_the_same_with_any_padding(pair: tuple[CRF, ExportedGraph], mask: Tensor, n: int) -> None:
    crf, graph = pair
    x = torch.randn(*mask.shape, 6)
    expected = {name: rows.numpy() for name, rows in crf.decide(x, mask, n_best=n).items()}
    made = graph(x=x.masked_fill(~mask[..., None], float("nan")), mask=mask, n=torch.zeros(n))
    for name, rows in expected.items():
        assert made[name].shape == rows.shape
        assert np.abs(made[name] - rows).max() < (0.5 if name in ("tags", "paths") else 1e-4)
    assert not any(made[name][~mask.numpy()].any() for name in ("tags", "scores", "opens", "closes"))


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs /proc/self/clear_refs")
@pytest.mark.parametrize("form", ["graph", "PyTorch"])
def test_deciding_among_many_tags_needs_memory_for_a_pair_of_tags_once(tmp_path: Path, form: str) -> None:
    """Scores of all pairs at all places would be T P P B numbers, 590 MB here; those of one place are 2 MB."""
    T, B, L = 300, 24, 142
    crf = CRF(6, [f"t{i}" for i in range(L)], scheme="none").float().eval()
    decide: Any = crf.decide
    if form == "graph":
        decide = export(tmp_path / "crf.onnx", crf, crf.decide, AXES, x=torch.randn(3, 5, 6), mask=MASK)
    x, mask = torch.randn(B, T, 6), torch.ones(B, T, dtype=torch.bool)

    def kibibytes(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key))

    Path("/proc/self/clear_refs").write_text("5")
    before = kibibytes("VmRSS")
    with torch.no_grad():
        decide(x=x, mask=mask)
    assert (kibibytes("VmHWM") - before) * 1024 < 0.25 * 4 * T * (L + 1) ** 2 * B


def test_everything_is_made_where_the_input_is() -> None:
    crf, x, gold = head().float(), torch.randn(3, 5, 6), torch.zeros(3, 5, dtype=torch.int64)
    with meta_device():
        made = crf.decide(x, MASK, n_best=3)
        crf.loss(x, MASK, gold).backward()
    assert {rows.device.type for rows in made.values()} == {"cpu"}


def test_plain_tags_have_no_constraints_and_are_answered_as_tags() -> None:
    assert not CRF(6, ("NOUN", "VERB", "I-x"), scheme="none").forbidden.any()
    assert CRF.answer({"scheme": "none"}) == "tags"
    assert CRF.answer({}) == "spans"


# Parameters of pytorch-crf: the first draw, and a field that it trained


def test_the_first_parameters_are_drawn_by_pytorch_crf_as_they_were_before_and_keep_their_names() -> None:
    torch.manual_seed(7)
    crf = CRF(6, LABELS)
    assert list(crf.state_dict()) == [
        "start_transitions",
        "end_transitions",
        "transitions",
        "temperature",
        "emissions.weight",
        "emissions.bias",
    ]
    shapes: list[Any] = [5, 5, (5, 5)]
    for draw in (lambda: [*torchcrf.CRF(5).parameters()], lambda: [torch.empty(n).uniform_(-0.1, 0.1) for n in shapes]):
        torch.manual_seed(7)
        torch.nn.Linear(6, 5)
        drawn = draw()
        found = (crf.start_transitions, crf.end_transitions, crf.transitions)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, drawn, strict=True))


def trained_field(path: Path, seed: int = 0, scale: float = 1.0) -> torchcrf.CRF:
    """A field of pytorch-crf in float64, with the parameters of a long training, saved as the documentation says."""
    torch.manual_seed(seed)
    field = torchcrf.CRF(len(LABELS), batch_first=True).double()
    for parameter in field.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    safetensors.torch.save_file(field.state_dict(), path)
    return field


def field_init(path: Path, labels: Any = LABELS, scheme: Any = "BIOES") -> Any:
    return {"crf": path, "labels": [*labels], "scheme": scheme}


ORDERS = [LABELS, LABELS[::-1], *(tuple(random.Random(seed).sample(LABELS, 5)) for seed in range(6))]


@pytest.mark.parametrize("order", ORDERS, ids="".join)
def test_a_field_of_pytorch_crf_has_the_same_loss_and_paths_with_its_labels_in_any_order(
    tmp_path: Path, order: tuple[str, ...]
) -> None:
    field, crf = trained_field(tmp_path / "crf.safetensors", scale=2), head(1, constraints=False)
    assert crf.load_init(field_init(tmp_path / "crf.safetensors", order)) == "crf.safetensors"
    place = torch.tensor([LABELS.index(tag) for tag in order])  # of a tag of the field among those of the head
    number = place.argsort()
    x, mask = torch.randn(4, 40, 6).double(), ragged_mask(40, 1, 3, 22)
    gold = torch.randint(5, (4, 40))
    emissions = crf.emissions(x)[..., place]
    expected = -field(emissions, number[gold], mask, reduction="token_mean")
    assert crf.loss(x, mask, gold).item() == pytest.approx(expected.item(), rel=0, abs=1e-9)
    tags = crf.decide(x, mask)["tags"]
    found = [number[row[:length]].tolist() for row, length in zip(tags, mask.sum(1).tolist(), strict=True)]
    assert found == field.decode(emissions, mask)
    if order != LABELS:  # the parameters as they stand in the file are another field
        crf.load_init(field_init(tmp_path / "crf.safetensors"))
        assert abs(crf.loss(x, mask, gold) - expected).item() > 1e-3


def test_a_field_that_never_breaks_its_scheme_comes_with_constraints_too(tmp_path: Path) -> None:
    field, crf, path = trained_field(tmp_path / "crf.safetensors"), head(1), tmp_path / "crf.safetensors"
    L = len(LABELS)
    with torch.no_grad():
        for parameter, part in zip(
            field.parameters(), (crf.forbidden[L, :L], crf.forbidden[:L, L], crf.forbidden[:L, :L]), strict=True
        ):
            parameter += part
    safetensors.torch.save_file(field.state_dict(), path)
    crf.load_init(field_init(path))
    x = torch.randn(3, 5, 6).double()
    expected = -field(crf.emissions(x), GOLD, MASK, reduction="token_mean")
    assert crf.loss(x, MASK, GOLD).item() == pytest.approx(expected.item(), rel=0, abs=1e-9)


BIO = ("O", "B-a", "I-a")


def saved(path: Path, **tensors: Tensor) -> Path:
    state = tensors or torchcrf.CRF(3).state_dict()
    safetensors.torch.save_file({name: tensor.clone() for name, tensor in state.items()}, path)
    return path


@pytest.mark.parametrize(
    ("labels", "scheme", "message"),
    [
        (BIO, "BIOES", r"init\.scheme: it is BIOES, but the head's is IOB2; both must agree"),
        (BIO, "none", r"init\.scheme: it is none"),
        (("O", "B-a"), "BIO", r"init\.labels: .*\(missing: I-a\)"),
        ((*BIO, "B-b", "[PAD]"), "BIO", r"init\.labels: .*\(unknown: B-b, \[PAD\]\)"),
        (("O", "B-a", "B_a", "O"), "BIO", r"init\.labels: .*\(missing: I-a; unknown: B_a; repeated: O\)"),
        ((*BIO, "O"), "BIO", r"init\.labels: .*\(repeated: O\)"),
        (BIO, "BIO", r"init: IOB2 forbids O to I-a, which the field permits; write constraints: false"),
    ],
)
def test_labels_or_a_scheme_that_do_not_fit_are_refused(tmp_path: Path, labels: Any, scheme: str, message: str) -> None:
    crf = CRF(6, BIO, scheme="IOB2")
    with pytest.raises(UsageError, match=message):
        crf.load_init(field_init(saved(tmp_path / "crf.safetensors"), labels, scheme))


@pytest.mark.parametrize("scheme", ["BIO", "IOB2"])
def test_the_usual_name_of_iob2_is_one_too(tmp_path: Path, scheme: str) -> None:
    crf = CRF(6, BIO, scheme="IOB2", constraints=False)
    field = safetensors.torch.load_file(saved(tmp_path / "crf.safetensors"))
    crf.load_init(field_init(tmp_path / "crf.safetensors", BIO, scheme))
    assert torch.equal(crf.transitions, field["transitions"])


L4, START = torch.zeros(4), torch.zeros(3)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"start_transitions": L4, "end_transitions": L4, "transitions": torch.zeros(4, 4)},
            r"has .*transitions of shape \(4.*\), not \(3.*\) of the 3 labels",
        ),
        (
            {"start_transitions": START, "end_transitions": START},
            "has no transitions, but end_transitions, start_transitions; save it by",
        ),
        ({"crf.transitions": torch.zeros(3, 3)}, "has no end_transitions, but crf.transitions; save it by"),
        (
            {"start_transitions": START, "end_transitions": START, "transitions": torch.full((3, 3), torch.nan)},
            "has numbers that are not finite; to forbid a transition, use -10000",
        ),
    ],
)
def test_a_file_of_another_field_is_refused(tmp_path: Path, tensors: dict[str, Tensor], message: str) -> None:
    crf, path = CRF(6, BIO, scheme="IOB2", constraints=False), saved(tmp_path / "crf.safetensors", **tensors)
    before = crf.transitions.clone()
    with pytest.raises(UsageError, match=rf"init\.crf: {path}.*{message}"):
        crf.load_init(field_init(path, BIO, "BIO"))
    assert torch.equal(crf.transitions, before)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    crf, path = CRF(6, BIO, scheme="IOB2", constraints=False), tmp_path / "crf.pt"
    path.write_bytes(pickle.dumps(torchcrf.CRF(3).state_dict()))
    for file in (path, tmp_path / "none.safetensors"):
        with pytest.raises(UsageError, match=r"save it by safetensors\.torch\.save_file\(crf\.state_dict\(\), FILE\)"):
            crf.load_init(field_init(file, BIO, "BIO"))
