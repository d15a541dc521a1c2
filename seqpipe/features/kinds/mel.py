"""Feature kind `mel`: log-mel spectra of a sound, its WAV or samples, and sampling rates."""

from __future__ import annotations

import io
import math
import random
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np

from seqpipe.errors import DataError, install_command
from seqpipe.features.kinds.base import FeatureKind, unknown_kind
from seqpipe.features.kinds.matrix import Matrix
from seqpipe.features.media import is_encoded, read_bytes

MOST_BYTES = 32_000_000  # of an encoded sound
MOST_SECONDS, MOST_SAMPLES = 600, 64_000_000  # of a sound, all channels, before resampling
MOST_RESAMPLED = MOST_SECONDS * 48_000  # samples at the kind's rate
MOST_POINTS = 1 << 20  # of Fourier transforms for a second of sound: frames times `fft`
LEAST_RATE, MOST_RATE = 1_000, 192_000
LOUDEST = 8.0  # of a sample; full scale is 1
FLOOR = 1e-10  # least power whose logarithm is computed
MOST_FFT, MOST_BANDS, MOST_FRAMES = 8_192, 256, 500  # the last in a second
ZERO_CROSSINGS, PASSED = 16, 0.95  # of the resampling filter: of each half, and the passed share of the band
UNKNOWN_SIZES = (0, 0x7FFFF000, 0xFFFFFFFF)  # of the data of a WAV that was written into a pipe
_PIPED = 0x7FFFF000  # no smaller size of such a file is stated, with its header
_SAMPLES_OF_A_TOKEN = 256  # which are transformed in about the time of a token
_BLOCK_FRAMES = 1_024  # frames, or resampled samples, that are computed together
_SAMPLES_PER_READ = 1 << 20  # samples of all channels that are decoded together
_WAV = {  # by format tag and bits of a sample: its dtype, the zero level and full scale
    (1, 8): ("u1", 128, 1 << 7),
    (1, 16): ("<i2", 0, 1 << 15),
    (1, 24): ("u1", 0, 1 << 31),  # three bytes each, read as the upper ones of 32 bits
    (1, 32): ("<i4", 0, 1 << 31),
    (3, 32): ("<f4", 0, 1),
}
_OTHER_FORMATS = (b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")  # FLAC, OGG and MP3 begin so
_CONVERT = "convert it, for instance with `ffmpeg -i SOUND -ac 1 -ar 16000 sound.wav`"


@dataclass(frozen=True)
class Mel(Matrix):
    """Log-mel spectra of a sound, a row for each frame, minus the band's mean in the training data, divided by its
    standard deviation there; 0 padding.

    Frame t is `fft` samples around sample t * `hop`, with zeros beyond the sound, times a periodic Hann window of
    `window` samples in their middle; n samples have 1 + n // `hop` frames. Triangular filters on the mel scale of
    Slaney (1998), each of area 1, sum the power spectrum to `bands`; the row is the natural logarithm of these, at
    least 1e-10: the features of librosa. A sound is a WAV, of which channels are averaged and another rate is
    resampled, or a list of samples from -1 to 1 at `rate`, or {"array": such a list, "sampling_rate": its rate}. Only
    for a source without a tokenizer.
    """

    rate: int = 16_000
    window: int = 400
    hop: int = 160
    fft: int = 512
    bands: int = 80
    lowest: float = 0.0
    highest: float = 8_000.0
    most: int = field(default=MOST_RESAMPLED, compare=False)  # samples of a sound at `rate`
    kind = "mel"
    shape = "(B, T, bands)"
    is_media = True

    @property
    def size(self) -> int:
        """F, the number of bands."""
        return self.bands

    def initialise_from(self, older: FeatureKind | None) -> Self:
        """Return the older feature unchanged, if its spectra are the same: numbers keep their meaning."""
        if isinstance(older, type(self)):
            unfitted = replace(older, means=(), deviations=(), normalise=self.normalise)
            return older if unfitted == self else self
        return self

    def rows(self, value: Any, place: str) -> np.ndarray:
        """Return the log-mel spectra (T, bands) of a WAV (a file, its bytes or base64) or of samples at `rate`."""
        samples: np.ndarray | None
        if is_encoded(value):
            data = read_bytes(value, place, MOST_BYTES)
            if data.startswith(_OTHER_FORMATS):
                samples, rate = self._by_soundfile(data, place)
            else:
                header = wav_header(data, place)
                self._check_size(header.frames, header.channels, header.rate, place)
                samples, rate = read_wav(data, place)
        else:
            value, rate = self._array(value, place)
            try:
                with np.errstate(over="ignore"):  # refused below
                    samples = np.array(value, np.float32) if isinstance(value, list | tuple | np.ndarray) else None
            except (TypeError, ValueError, OverflowError):
                samples = None
            if samples is None or samples.ndim != 1:
                fix = "give a WAV (base64, bytes or a pathlib.Path), or a list of samples of one channel"
                raise DataError(f"{place} must have a sound, not {type(value).__name__}; {fix}")
            if not len(samples):
                return np.zeros((0, self.bands), np.float32)
            self._check_size(len(samples), 1, rate, place)
        if not np.abs(samples).max() <= LOUDEST:
            fix = "give samples from -1 to 1; divide 16-bit samples by 32768"
            raise DataError(f"{place} has samples beyond {LOUDEST:g}, or that are not finite; {fix}")
        return self._spectra(resample(samples, rate, self.rate))

    def media_tokens(self, value: Any, place: str) -> int:
        count, channels, rate = 0, 1, self.rate
        if is_encoded(value):
            data = read_bytes(value, place, MOST_BYTES)
            if not data.startswith(_OTHER_FORMATS):
                rate, channels, count, *_ = wav_header(data, place)
                self._check_size(count, channels, rate, place)
            elif size := _flac_size(data):
                count, channels, rate = size
                self._check_size(count, channels, rate, place)
            else:  # a header without the length, which is seen when the sound is read
                count = self.most
        else:
            value, rate = self._array(value, place)
            if isinstance(value, list | tuple | np.ndarray) and len(value):
                self._check_size(count := len(value), 1, rate, place)
        return 1 + max(count * channels, count * self.rate // rate) // _SAMPLES_OF_A_TOKEN

    def limited(self, pixels: int, samples: int) -> Self:
        return replace(self, most=min(self.most, samples))

    def _array(self, value: Any, place: str) -> tuple[Any, int]:
        """Return the samples of a value that is no file, which are not checked, and their rate."""
        if not (isinstance(value, Mapping) and {"array", "sampling_rate"} <= value.keys()):
            return value, self.rate
        if type(rate := value["sampling_rate"]) is not int:
            raise DataError(f"{place} has the sampling_rate {rate!r:.100}; give a whole number")
        return value["array"], rate

    def _by_soundfile(self, data: bytes, place: str) -> tuple[np.ndarray, int]:
        """Return the samples of FLAC, OGG or MP3, and their rate."""
        try:
            import soundfile
        except ImportError as error:
            problem = "is FLAC, OGG or MP3, which the package soundfile reads, and it is not installed"
            raise DataError(f"{place} {problem}: {install_command('media')}, or {_CONVERT}") from error
        try:
            with soundfile.SoundFile(io.BytesIO(data)) as file:
                self._check_size(file.frames, file.channels, file.samplerate, place)
                blocks = file.blocks(_SAMPLES_PER_READ // file.channels, dtype="float32", always_2d=True)
                return np.concatenate([block.mean(1) for block in blocks]), file.samplerate
        except soundfile.SoundFileError as error:  # which names an object of this program
            reason = re.sub(r"Error opening <.*?>: ", "", str(error))
            raise DataError(f"{place} cannot be read ({reason}); {_CONVERT}") from error

    def _check_size(self, count: int, channels: int, rate: int, place: str) -> None:
        """Raise DataError, before anything is decoded, for an absurd rate, and for no samples or too many."""
        if not LEAST_RATE <= rate <= MOST_RATE:
            rates = f"{LEAST_RATE:,} to {MOST_RATE:,}"
            raise DataError(f"{place} has {rate:,} samples a second; {rates} are read; {_CONVERT}")
        if not count:
            raise DataError(f"{place} is a sound without samples; leave it out")
        if count > MOST_SECONDS * rate or count * channels > MOST_SAMPLES:
            raise DataError(f"{place} is longer than {MOST_SECONDS} seconds, or has too many channels; split it")
        if (resampled := count * self.rate // rate) > self.most:
            problem = f"has {resampled:,} samples at the rate {self.rate:,}, and at most {self.most:,} are read"
            raise DataError(f"{place} {problem}; split it")

    def _spectra(self, samples: np.ndarray) -> np.ndarray:
        """Return the logarithms of the bands (T, bands) of samples (n,)."""
        filters = mel_filters(self.rate, self.fft, self.bands, self.lowest, self.highest).T
        # The window is periodic: its period is `window` samples. It stands in the middle of the `fft` samples.
        before = (self.fft - self.window) // 2
        window = np.zeros(self.fft)
        window[before : before + self.window] = 0.5 - 0.5 * np.cos(2 * np.pi / self.window * np.arange(self.window))
        frames = np.lib.stride_tricks.sliding_window_view(np.pad(samples, self.fft // 2), self.fft)[:: self.hop]
        blocks = (frames[i : i + _BLOCK_FRAMES] * window for i in range(0, len(frames), _BLOCK_FRAMES))
        power = (np.square(np.abs(np.fft.rfft(block))) @ filters for block in blocks)
        return np.concatenate([np.log(np.maximum(block, FLOOR)).astype(np.float32) for block in power])

    def example_value(self, draw: random.Random) -> Any:
        return [draw.uniform(-1, 1) for _ in range(draw.randint(1, 12 * self.hop))]

    def value_of(self, rows: Sequence[Sequence[float]]) -> list[float]:
        numbers = np.array(rows, np.float64).ravel() / 20
        return np.resize(numbers, (len(rows) - 1) * self.hop + 1).tolist()

    def manifest(self) -> dict[str, Any]:
        names = ("rate", "window", "hop", "fft", "bands", "lowest", "highest")
        return {**super().manifest(), **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizers: Mapping[str, Any]) -> Self:
        names = ("rate", "window", "hop", "fft", "bands")
        lengths = {len(manifest["means"]), len(manifest["deviations"]), manifest["bands"]}
        if len(lengths) > 1 or not all(type(manifest[name]) is int for name in names):
            raise unknown_kind(f"{cls.kind!r} without whole numbers, or of other bands than means and deviations")
        means, deviations = (tuple(map(float, manifest[name])) for name in ("means", "deviations"))
        options: dict[str, Any] = {name: manifest[name] for name in names}
        options |= {name: float(manifest[name]) for name in ("lowest", "highest")}
        return cls(means=means, deviations=deviations, **options)

    def out_of_bounds(self) -> str:
        if not LEAST_RATE <= self.rate <= MOST_RATE:
            return f"mel: a rate of {self.rate:,}, which must be from {LEAST_RATE:,} to {MOST_RATE:,}"
        if not 2 <= self.window <= self.fft <= MOST_FFT or self.fft % 2:
            sizes = f"window {self.window:,} and fft {self.fft:,}"
            return f"mel: {sizes}; the fft must be even, at least the window and at most {MOST_FFT:,}"
        if not self.rate / MOST_FRAMES <= self.hop <= self.fft:
            return f"mel: a hop of {self.hop:,}, which must be from a {MOST_FRAMES}th of the rate to the fft"
        if self.rate / self.hop * self.fft > MOST_POINTS:
            costs = f"{self.rate / self.hop:,.0f} transforms of {self.fft:,} for a second of sound"
            return f"mel: {costs}; rate / hop * fft must be at most {MOST_POINTS:,}"
        if not 1 <= self.bands <= MOST_BANDS:
            return f"mel: {self.bands:,} bands, which must be from 1 to {MOST_BANDS}"
        if not 0 <= self.lowest < self.highest <= self.rate / 2:
            limits = f"lowest {self.lowest:g} and highest {self.highest:g}"
            return f"mel: {limits}, which must be from 0 to half the rate, in this order"
        return super().out_of_bounds()


@cache
def mel_filters(rate: int, fft: int, bands: int, lowest: float, highest: float) -> np.ndarray:
    """Return the weights (bands, 1 + fft / 2) of triangular filters, on the mel scale of Slaney (1998), of area 1.

    The scale is linear up to 1000 Hz, with 15 mel there, and logarithmic above, with 27 mel for a factor of 6.4.
    """

    def to_mel(hertz: float) -> float:
        return hertz * 3 / 200 if hertz < 1_000 else 15 + 27 * math.log(hertz / 1_000) / math.log(6.4)

    mel = np.linspace(to_mel(lowest), to_mel(highest), bands + 2)
    corners = np.where(mel < 15, mel * 200 / 3, 1_000 * np.exp((mel - 15) * math.log(6.4) / 27))[:, None]  # Hz
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    hertz = np.arange(1 + fft // 2) * (rate / fft)
    triangles = np.minimum((hertz - left) / (middle - left), (right - hertz) / (right - middle))
    return np.maximum(triangles, 0) * 2 / (right - left)


def resample(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Return samples at another rate, ⌈n * wanted / rate⌉ of them, by a windowed sinc.

    Sample m of the result is Σ x(k) g(k - m * rate / wanted), with zeros beyond the sound, where g(u) = c sinc(c u)
    cos²(π c u / 32) for |c u| < 16, else 0, and c = 0.95 min(1, wanted / rate).
    """
    if rate == wanted:
        return samples
    common = math.gcd(rate, wanted)
    up, down = wanted // common, rate // common
    c = PASSED * min(1.0, wanted / rate)
    reach = math.ceil(ZERO_CROSSINGS / c)
    result = np.zeros(-(-len(samples) * up // down))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(samples, (reach, 2 * reach + down)), 2 * reach + 2)
    # Every `up`-th sample of the result has the same place between samples, so the same weights.
    for phase in range(min(up, len(result))):
        first, remainder = divmod(phase * down, up)
        u = c * (np.arange(-reach, reach + 2) - remainder / up)
        weights = np.where(np.abs(u) < ZERO_CROSSINGS, np.sinc(u) * np.cos(np.pi / 2 / ZERO_CROSSINGS * u) ** 2, 0) * c
        rows, written = windows[first::down], result[phase::up]
        for i in range(0, len(written), _BLOCK_FRAMES):
            written[i : i + _BLOCK_FRAMES] = rows[i : min(i + _BLOCK_FRAMES, len(written))].astype(np.float64) @ weights
    return result


def _flac_size(data: bytes) -> tuple[int, int, int] | None:
    """Return the samples of a channel, the channels and the rate that a FLAC states; None for any other file."""
    numbers = int.from_bytes(data[18:26], "big")  # 20 bits of the rate, 3 of the channels, 5, and 36 of the samples
    count, channels, rate = numbers % (1 << 36), 1 + (numbers >> 41) % 8, numbers >> 44
    return (count, channels, rate) if data.startswith(b"fLaC") and count and rate else None


class WavHeader(NamedTuple):
    """The header of a WAV."""

    rate: int
    channels: int
    frames: int  # samples of each channel
    form: tuple[int, int]  # tag and bits of a sample, one of those of `_WAV`
    start: int  # of the samples, in bytes


def wav_header(data: bytes, place: str) -> WavHeader:
    """Return the header of a WAV; data of an unknown size, as a pipe has it, reach to the end of the file.

    Raises:
        DataError: if it is not PCM of 8, 16, 24 or 32 bits or float32, or lengths in it exceed the data.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise DataError(f"{place} is not a WAV; {_CONVERT}")
    whole = int.from_bytes(data[4:8], "little")
    end, at, form = len(data) if whole in UNKNOWN_SIZES or whole > _PIPED else 8 + whole, 12, b""
    while True:
        name, start = data[at : at + 4], at + 8
        size = int.from_bytes(data[at + 4 : start], "little")
        if name == b"data" and size in UNKNOWN_SIZES and (size or end != 8 + whole):
            size = end - start
            size -= size % max(1, int.from_bytes(form[12:14], "little"))  # a whole number of frames
        if not 0 <= start <= start + size <= end <= len(data):
            problem = f"states that it has more than its {len(data):,} bytes, or has no sound"
            raise DataError(f"{place} is a WAV that {problem}; is the file whole? {_CONVERT}")
        if name == b"data":
            break
        form = data[start : start + size] if name == b"fmt " else form
        at = start + size + size % 2
    if len(form) < 16:
        raise DataError(f"{place} is a WAV without a format before its data; {_CONVERT}")
    tag, channels, rate, _, step, bits = struct.unpack_from("<HHIIHH", form)
    if tag == 0xFFFE:  # extensible: the tag begins a longer name of the format
        tag = int.from_bytes(form[24:26], "little")
    if step and size % step:
        raise DataError(f"{place} is a WAV that ends within a sample; is the file whole? {_CONVERT}")
    if (tag, bits) not in _WAV or not channels or step != channels * bits // 8:
        problem = f"format {tag} with {channels} channels of {bits} bits in {step} bytes"
        raise DataError(f"{place} is a WAV of {problem}; PCM of 8, 16, 24 or 32 bits and float32 are read; {_CONVERT}")
    return WavHeader(rate, channels, size // step, (tag, bits), start)


def read_wav(data: bytes, place: str) -> tuple[np.ndarray, int]:
    """Return the samples of a WAV, the mean of its channels, and its rate; DataError as of `wav_header`."""
    header = wav_header(data, place)
    (dtype, zero, scale), bits = _WAV[header.form], header.form[1]
    size = header.frames * header.channels * bits // 8
    numbers = np.frombuffer(data, dtype, size // np.dtype(dtype).itemsize, header.start)
    if bits == 24:
        wide = np.zeros((size // 3, 4), np.uint8)
        wide[:, 1:] = numbers.reshape(-1, 3)
        numbers = wide.view("<i4")[:, 0]
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused later
        samples = (numbers.astype(np.float32) - np.float32(zero)) / np.float32(scale)
        return samples.reshape(-1, header.channels).mean(1, dtype=np.float32), header.rate
