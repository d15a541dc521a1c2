"""The variants of the LSTM of Greff et al. (2017): each part left out, and full gate recurrence."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from cells import Array, Step, encoded, greff
from exported import export, ragged
from torch import Tensor

from seqpipe.config.signature import construct
from seqpipe.errors import UsageError
from seqpipe_plugins.encoders.lstm import LSTM


class Variant(NamedTuple):
    options: dict[str, Any]
    step: Step

    def build(self, **options: Any) -> LSTM:
        torch.manual_seed(1)
        encoder = construct(LSTM, 5, {}, hidden=6, **{"peephole": True, **self.options, **options}).eval()
        with torch.no_grad():
            for weight in encoder.parameters():
                weight *= 2  # gates far from a half, so that a missing part shows
        return encoder


VARIANTS = {
    "no-input-gate": Variant({"input_gate": False}, greff(without=("i",))),
    "no-forget-gate": Variant({"forget_gate": False}, greff(without=("f",))),
    "no-output-gate": Variant({"output_gate": False}, greff(without=("o",))),
    "no-input-activation": Variant({"input_activation": False}, greff(without=("g",))),
    "no-output-activation": Variant({"output_activation": False}, greff(without=("h",))),
    "full-gate-recurrence": Variant({"full_gate_recurrence": True}, greff(full=True)),
    "coupled-full-gate-recurrence": Variant(
        {"full_gate_recurrence": True, "coupled": True}, greff(full=True, coupled=True)
    ),
    "linear-without-output-gate": Variant(
        {"output_gate": False, "output_activation": False, "peephole": False}, greff(without=("o", "h"))
    ),
}


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> Variant:
    return VARIANTS[request.param]


def distance(made: dict[str, Array], variant: Variant, encoder: LSTM, x: Tensor, mask: Tensor, direction: str) -> float:
    """The largest difference at real tokens from the paper's equations."""
    worst = 0.0
    for row, length in enumerate(mask.sum(1).tolist()):
        expected = encoded(variant.step, encoder.layers, x[row, :length].double().numpy(), direction, "concat")
        for ours, theirs in zip(
            (made["x"][row, :length], made["state"][row], made["first"][row]), expected, strict=True
        ):
            worst = max(worst, float(np.abs(ours - theirs).max()))
    return worst


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_a_variant_follows_the_equations_of_the_paper(variant: Variant, direction: str, bias: bool) -> None:
    encoder, x, mask = variant.build(layers=2, direction=direction, bias=bias), torch.randn(3, 6, 5), ragged(4, 6, 1)
    made = {name: tensor.detach().numpy() for name, tensor in encoder(x, mask).items()}
    assert distance(made, variant, encoder, x, mask, direction) < 1e-5
    plain = Variant({}, greff())
    if len(variant.options) == 1 and "full_gate_recurrence" not in variant.options:
        full = plain.build(layers=2, direction=direction, bias=bias)
        other = {name: tensor.detach().numpy() for name, tensor in full(x, mask).items()}
        assert distance(other, plain, full, x, mask, direction) < 1e-5
        assert float(np.abs(other["x"] - made["x"]).max()) > 1e-2


def test_the_graph_follows_them_on_ragged_batches(variant: Variant, tmp_path: Path) -> None:
    encoder, axes = variant.build(), {"x": ("b", "t"), "mask": ("b", "t")}
    inputs = {"x": torch.randn(3, 7, 5), "mask": ragged(7, 2, 4)}
    graph = export(tmp_path / "encoder.onnx", encoder, encoder.forward, axes, **inputs)
    for mask in (ragged(1), ragged(9), ragged(3, 12, 1, 7, 12)):
        x = torch.randn(*mask.shape, 5)
        made = graph(x=x.masked_fill(~mask[..., None], float("nan")), mask=mask)
        assert distance(made, variant, encoder, x, mask, "both") < 1e-5


def test_token_by_token_it_gives_the_same(variant: Variant) -> None:
    encoder, x, mask = variant.build(layers=2, direction="forward"), torch.randn(3, 6, 5), ragged(6, 6, 6)
    state: Any = tuple(torch.zeros(3, 6) for _ in range(encoder.cache_shape[0]))
    steps = []
    for t in range(6):
        step, state = encoder.step(x[:, t], torch.tensor(t), None, state)  # type: ignore[arg-type]
        steps.append(step)
    torch.testing.assert_close(torch.stack(steps, 1), encoder(x, mask)["x"], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coupled": True, "input_gate": False}, "lstm.coupled"),
        ({"coupled": True, "forget_gate": False}, "lstm.coupled"),
        ({"scan": True, "output_gate": False}, "lstm.scan"),
        ({"peephole": True, "input_gate": False, "forget_gate": False, "output_gate": False}, "lstm.peephole"),
        (
            {"full_gate_recurrence": True, "input_gate": False, "forget_gate": False, "output_gate": False},
            "lstm.full_gate_recurrence",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        construct(LSTM, 5, {}, **options)
