"""The embedding `mel`: spans that training hides, and other lengths of the vocal tract."""

import numpy as np
import pytest
import torch

from seqpipe_plugins.embeddings.mel import MelEmbedding

BATCH, FRAMES, BANDS = 60, 50, 40
LENGTHS = torch.arange(BATCH) * 2 % FRAMES + 1
MASK = torch.arange(FRAMES) < LENGTHS[:, None]  # (B, T)


def hidden(embedding: MelEmbedding) -> np.ndarray:
    """Return where training replaces the numbers of a batch by 0, (B, T, D)."""
    mel = torch.rand(BATCH, FRAMES, BANDS) + 1
    x = embedding.train()(mel, MASK)
    is_kept = (x == mel) | ~MASK[..., None]
    assert bool((x[~is_kept] == 0).all())
    assert torch.equal(embedding.eval()(mel, MASK), torch.where(MASK[..., None], mel, 0.0))
    return (~is_kept).numpy()


def spans(flags: np.ndarray) -> list[tuple[int, int]]:
    """Return begin and end of each span of True."""
    edges = np.flatnonzero(np.diff(np.r_[False, flags, False]))
    return [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]


@pytest.mark.parametrize(("option", "axis"), [("masked_frames", 1), ("masked_bands", 2)])
def test_training_hides_two_spans_of_real_frames_or_of_bands(option: str, axis: int) -> None:
    torch.manual_seed(1)
    options = {option: 9}
    found = hidden(MelEmbedding({"mel": BANDS}, **options))  # type: ignore[arg-type]
    lengths = set()
    for row, length in zip(found, LENGTHS.tolist(), strict=True):
        row = row[:length]
        flags = row.any(2 - axis)
        assert np.array_equal(row, np.broadcast_to(flags[:, None] if axis == 1 else flags, row.shape))
        assert len(spans(flags)) <= 2
        lengths |= {end - begin for begin, end in spans(flags)}
        assert flags.sum() <= 2 * 9
    assert {1, 5, 9} <= lengths  # short spans and long ones, two of which may touch
    assert found.any((0, 3 - axis))[:40].all()  # everywhere; few sounds have more frames
    assert not np.array_equal(found, hidden(MelEmbedding({"mel": BANDS}, **options)))  # type: ignore[arg-type]


def test_nothing_is_hidden_or_warped_by_default() -> None:
    assert not hidden(MelEmbedding({"mel": BANDS})).any()


def test_training_reads_each_frame_at_other_bands_with_a_factor_for_each_sound() -> None:
    embedding, everything = MelEmbedding({"mel": BANDS}, warp=0.2).train(), torch.ones_like(MASK)
    ramp = torch.arange(BANDS, dtype=torch.float32).expand(BATCH, FRAMES, BANDS)  # shows the place that was read
    torch.manual_seed(1)
    factors = embedding(ramp, everything)[:, :, 10] / 10  # (B, T)
    assert bool((factors == factors[:, :1]).all())
    assert 0.8 <= float(factors.min()) < 0.85 < 1.15 < float(factors.max()) <= 1.2
    x = torch.randn(BATCH, FRAMES, BANDS)
    torch.manual_seed(1)
    found = embedding(x, everything)
    places = np.arange(BANDS)
    for row, frames, factor in zip(found.numpy(), x.numpy(), factors[:, 0].tolist(), strict=True):
        expected = [np.interp(places * factor, places, frame) for frame in frames]
        np.testing.assert_allclose(row, expected, atol=1e-4)
    assert torch.equal(embedding.eval()(x, everything), x)
