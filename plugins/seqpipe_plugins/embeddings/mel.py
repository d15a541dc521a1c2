"""Log-mel spectra of a sound as vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from seqpipe.plugin import Mel as Spectra
from seqpipe.plugin import UsageError


class MelEmbedding(nn.Module):
    """Log-mel spectra of a sound, a row for each frame of it; for a source without a tokenizer.

    The record's field `field` is a sound: the path of a WAV in a data file (the readers' option `files`), its content
    in base64, or samples from -1 to 1 at `rate`. x (B, T, D) has `bands` numbers in a row, by default standardised with
    the mean and standard deviation of each band in the training data. The usual encoders after it shorten the sequence:
    {use: subsample} or {use: pyramid}.

    Args:
        rate: Samples a second; a sound with another rate is resampled.
        window: Samples of a frame, under a Hann window.
        hop: Samples from one frame to the next.
        fft: Samples of the Fourier transform, at least `window`, even.
        bands: Number of bands, D.
        lowest: Lowest frequency, in Hz.
        highest: Highest frequency, in Hz, at most half of `rate`.
        normalise: Whether each band is standardised.
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
    ):
        super().__init__()
        self.dim = sizes["mel"]

    @staticmethod
    def features(options: Mapping[str, Any]) -> dict[str, Spectra]:
        names = [field.name for field in fields(Spectra)]
        feature = Spectra(**{name: options[name] for name in names if name in options})
        if fault := feature.out_of_bounds():
            raise UsageError(f"{fault}; correct the option")
        return {"mel": feature}

    def forward(self, mel: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, T, D)
        return torch.where(mask[..., None], mel, 0.0)
