"""Log-mel spectra of a sound as vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.plugin import Mel as Spectra
from seqpipe.plugin import UsageError


class MelEmbedding(nn.Module):
    """Log-mel spectra of a sound, a row for each frame of it; for a source without a tokenizer.

    The record's field `field` is a sound: the path of a WAV in a data file (the readers' option `files`), its content
    in base64, or samples from -1 to 1 at `rate`. x (B, T, D) has `bands` numbers in a row, by default standardised with
    the mean and standard deviation of each band in the training data. The usual encoders after it shorten the sequence:
    {use: subsample} or {use: pyramid}.

    In training a sound may differ a little in each epoch. SpecAugment (Park et al. 2019) sets two spans of frames of a
    sound and two spans of its bands to 0, the mean of what is standardised: f of D bands from f0 on, f uniform in
    [0, `masked_bands`], f0 in [0, D - f]; frames likewise. Vocal tract length perturbation (Jaitly and Hinton 2013)
    reads band d at d · a, linear between two bands, with a factor a for each sound, uniform in 1 ± `warp`.

    Args:
        rate: Samples a second; a sound with another rate is resampled.
        window: Samples of a frame, under a Hann window.
        hop: Samples from one frame to the next.
        fft: Samples of the Fourier transform, at least `window`, even.
        bands: Number of bands, D.
        lowest: Lowest frequency, in Hz.
        highest: Highest frequency, in Hz, at most half of `rate`.
        normalise: Whether each band is standardised.
        masked_bands: Largest number of bands of a span that is masked in training; 0: none.
        masked_frames: Largest number of frames of a span that is masked in training; 0: none.
        warp: Largest relative change of the frequencies of a sound in training; 0: none.
    """

    rows: ClassVar[dict[str, tuple[str, ...]]] = {}  # no parameter has rows of a vocabulary

    def __init__(
        self,
        sizes: Mapping[str, int],
        *,
        rate: PositiveInt = Spectra.rate,
        window: PositiveInt = Spectra.window,
        hop: PositiveInt = Spectra.hop,
        fft: PositiveInt = Spectra.fft,
        bands: PositiveInt = Spectra.bands,
        lowest: NonNegativeFloat = Spectra.lowest,
        highest: NonNegativeFloat = Spectra.highest,
        normalise: bool = Spectra.normalise,
        masked_bands: NonNegativeInt = 0,
        masked_frames: NonNegativeInt = 0,
        warp: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ):
        super().__init__()
        self.dim, self.warp = sizes["mel"], warp
        self.masked = {1: masked_frames, 2: masked_bands}  # by axis

    @staticmethod
    def features(options: Mapping[str, Any]) -> dict[str, Spectra]:
        names = [field.name for field in fields(Spectra)]
        feature = Spectra(**{name: options[name] for name in names if name in options})
        if fault := feature.out_of_bounds():
            raise UsageError(f"{fault}; correct the option")
        return {"mel": feature}

    def forward(self, mel: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, T, D)
        x = torch.where(mask[..., None], mel, 0.0)
        if self.training and self.warp:
            bands = torch.arange(self.dim, device=x.device)
            factors = 1 + self.warp * (2 * torch.rand(len(x), 1, 1, device=x.device) - 1)
            # Column d of the matrix has the shares of the two bands beside d · a, or 1 for the last band beyond it.
            x = x @ F.relu(1 - (bands[:, None] - (bands * factors).clamp(max=self.dim - 1)).abs())  # (B, D, D)
        for axis, longest in self.masked.items():
            if self.training and longest:
                sizes = mask.sum(1) if axis == 1 else mask.new_full((len(x),), self.dim, dtype=torch.int64)
                x = x.masked_fill(drawn_spans(sizes[:, None, None], x.shape[axis], longest).unsqueeze(3 - axis), 0.0)
        return x


def drawn_spans(sizes: Tensor, total: int, longest: int) -> Tensor:  # (B, 1, 1) -> (B, total)
    """Return True at places of two random spans of at most `longest` of the first `sizes` places of a row."""
    drawn = torch.rand(2, len(sizes), 2, 1, device=sizes.device)
    lengths = (drawn[0] * (sizes.clamp(max=longest) + 1)).long()  # (B, 2, 1)
    starts = (drawn[1] * (sizes - lengths + 1)).long()
    places = torch.arange(total, device=sizes.device)
    return ((places >= starts) & (places < starts + lengths)).any(1)
