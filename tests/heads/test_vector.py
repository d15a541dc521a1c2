"""Vectors of texts and the contrastive loss, of the heads `vector` and `label`, against NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_graphs import AXES, export, ragged_mask
from gallery import write_pipeline

from seqpipe.config.loader import load_config
from seqpipe.errors import DataError, UsageError
from seqpipe.training.data_forms import data_form
from seqpipe.training.fit import fit_artifacts
from seqpipe_plugins.heads.label import LabelHead
from seqpipe_plugins.heads.vector import VectorHead

X, MASK = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(1)), ragged_mask(4, 2, 1, 3, 4, 2)
POOLED = np.array([row[real].mean(0) for row, real in zip(X.double().numpy(), MASK.numpy(), strict=True)])


def contrastive(vectors: np.ndarray, labels: list[int], temperature: float) -> float:
    """Khosla et al. (2020), equation 2, an anchor and a positive at a time."""
    z = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    losses = []
    for i in range(len(z)):
        positives = [p for p in range(len(z)) if p != i and labels[p] == labels[i]]
        below = sum(np.exp(z[i] @ z[a] / temperature) for a in range(len(z)) if a != i)
        if positives:
            losses.append(-sum(np.log(np.exp(z[i] @ z[p] / temperature) / below) for p in positives) / len(positives))
    return float(np.mean(losses)) if losses else 0.0


@pytest.mark.parametrize("temperature", [0.1, 0.7])
@pytest.mark.parametrize("labels", [[0, 1, 0, 1, 1, 2], [0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 4]])
def test_the_loss_is_the_supervised_contrastive_one_over_the_batch(labels: list[int], temperature: float) -> None:
    head = VectorHead(5, temperature=temperature)
    expected = contrastive(POOLED, labels, temperature)
    assert head.loss(X, MASK, torch.tensor(labels)).item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_batch_without_two_texts_of_a_label_teaches_nothing_and_breaks_nothing(rows: int) -> None:
    head = VectorHead(5, width=3)
    loss = head.loss(X[:rows], MASK[:rows], torch.arange(rows))
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in head.parameters())


@pytest.mark.parametrize(("normalize", "width"), [(True, 3), (False, 3), (True, None), (False, None)])
def test_the_vector_is_the_pooled_text_of_a_width_and_a_length(tmp_path: Path, normalize: bool, width: Any) -> None:
    head = VectorHead(5, normalize=normalize, width=width)
    expected = POOLED
    if width:
        expected = POOLED @ head.output.weight.detach().double().numpy().T + head.output.bias.detach().double().numpy()
    if normalize:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    graph = export(tmp_path / "vector.onnx", head, head.decide, AXES, x=X[:3], mask=ragged_mask(4, 2, 3))
    polluted = X.masked_fill(~MASK[..., None], float("nan"))
    for found in (head.decide(X, MASK)["vector"].detach().numpy(), graph(x=polluted, mask=MASK)["vector"]):
        assert found.dtype == np.float32
        assert np.abs(found - expected).max() < 1e-6


# The head `label` with `contrastive`.


@pytest.mark.parametrize("pool", ["mean", "state"])
def test_few_labels_move_the_encoder_by_the_contrastive_loss_and_the_linear_layer_by_theirs(pool: Any) -> None:
    labels, state = torch.tensor([0, 1, 0, 1, 1, 2]), torch.from_numpy(POOLED).float()
    head, plain = (LabelHead(5, ["a", "b", "c"], pool=pool, contrastive=temperature) for temperature in (0.2, None))
    plain.load_state_dict(head.state_dict())
    x = X.clone().requires_grad_(True)
    loss = head.loss(x, MASK, labels, state.requires_grad_(pool == "state"))
    cross_entropy = plain.loss(X, MASK, labels, state)
    assert (loss - cross_entropy).item() == pytest.approx(contrastive(POOLED, labels.tolist(), 0.2), abs=1e-5)
    source = state if pool == "state" else x
    gradients = torch.autograd.grad(loss, [source, head.output.weight], retain_graph=True)
    alone = VectorHead(5, pool=pool, temperature=0.2).loss(x, MASK, labels, state)
    assert torch.allclose(gradients[0], torch.autograd.grad(alone, source)[0], atol=1e-6)
    assert torch.allclose(gradients[1], torch.autograd.grad(cross_entropy, plain.output.weight)[0], atol=1e-6)
    head.eval(), plain.eval()
    assert head.loss(X, MASK, labels, state).item() == pytest.approx(plain.loss(X, MASK, labels, state).item())
    assert torch.equal(head.decide(X, MASK, state)["scores"], plain.decide(X, MASK, state)["scores"])


@pytest.mark.parametrize("options", [{"multi": True}, {"out_of_scope": "c", "threshold": 0.5}])
def test_texts_with_several_labels_or_none_have_no_pairs(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"label.contrastive: "):
        LabelHead(5, ["a", "b", "c"], contrastive=0.1, **options)


def test_each_text_stands_beside_another_of_its_label_drawn_anew_in_each_epoch(tmp_path: Path) -> None:
    rows = [{"text": f"{label} {i}", "label": label} for label in "abcdefgh" for i in range(4)]
    path = write_pipeline(
        tmp_path,
        lambda count, seed: [*rows, rows[0]],
        "few",
        tokenizer="words",
        head={"use": "label", "contrastive": 0.1},
        train={"batch_size": 3, "seed": 5},
    )
    config = load_config(path)
    form = data_form(config)
    artifacts = fit_artifacts(config, records := form.read(config.data.train))
    seen: list[dict[str, str]] = []
    for number in (0, 1, 2, 1):
        batches: Any = form.load(artifacts, records).batches
        order = batches.order(number)
        assert max(map(len, order)) == 3
        partners = {example.doc.text: example.match.doc.text for example in batches.data}
        assert len(batches.data) == 33
        assert all(text[0] == partner[0] and text != partner for text, partner in partners.items())
        for batch in map(batches, order):
            counts = batch["label"].bincount()
            assert counts[counts > 0].min() > 1
        seen.append(partners)
    assert seen[1] == seen[3]
    assert len({tuple(partners.items()) for partners in seen}) == 3
    lone = [*records, {"text": "z 1", "label": "z", "where": "train.jsonl:34"}, {"text": "z 1", "label": "z"}]
    artifacts = fit_artifacts(config, lone)
    message = r"compares texts of one label, and has only one of: 'z' \(record 34 \(train.jsonl:34\)\); add another"
    with pytest.raises(DataError, match=message):
        form.load(artifacts, lone)
