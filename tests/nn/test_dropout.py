import pytest
import torch
from exported_graphs import meta_device

from seqpipe.nn.layers import LockedDropout


def test_a_column_is_silenced_at_all_time_steps_of_a_row_or_at_none() -> None:
    made = LockedDropout(0.3)(torch.ones(40, 7, 50))
    assert torch.equal(made, made[:, :1].expand(-1, 7, -1))
    silent = (made[:, 0] == 0).float()  # (B, D)
    assert silent.mean() == pytest.approx(0.3, abs=0.04)
    assert made[made != 0].unique().tolist() == pytest.approx([1 / 0.7])
    assert len(silent.unique(dim=0)) == 40  # every row has its own


def test_out_of_training_and_with_probability_0_nothing_changes() -> None:
    x = torch.randn(2, 3, 4)
    assert LockedDropout(0.9).eval()(x) is x
    assert LockedDropout(0.0)(x) is x


def test_the_mask_is_made_where_the_input_is() -> None:
    dropout, x = LockedDropout(0.5), torch.randn(2, 3, 4)
    with meta_device():
        assert dropout(x).device.type == "cpu"
