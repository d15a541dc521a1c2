"""The feature kind `mel`: librosa's values, other sampling rates, and WAVs that are read or refused.

`python tests/features/test_mel.py` writes mel.json, librosa's values, where librosa is installed.
"""

import base64
import io
import json
import random
import struct
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqpipe.errors import DataError
from seqpipe.features.kinds.mel import MOST_BYTES, Mel, read_wav, resample

STORED = Path(__file__).parent / "mel.json"
FORMS: list[dict[str, Any]] = [
    {},
    {"bands": 40, "fft": 400},
    {"rate": 8000, "window": 200, "hop": 80, "fft": 256, "bands": 40, "highest": 4000.0},
    {"window": 320, "hop": 200, "fft": 1024, "bands": 23, "lowest": 60.0, "highest": 7600.0},
]


def sound(rate: int, seconds: float = 0.4) -> np.ndarray:
    """A rising tone and a steady one over a hiss, with silence at the end."""
    n = np.arange(int(rate * seconds))
    t = n / rate
    tones = 0.5 * np.sin(2 * np.pi * (200 * t + 2000 * t**2)) + 0.25 * np.sin(2 * np.pi * 1317 * t)
    hiss = 0.01 * np.sin(0.37 * n.astype(np.float64) ** 2)
    return np.where(t < 0.8 * seconds, tones + hiss, 0.0).astype(np.float32)


def of_librosa(samples: np.ndarray, rate: int = 16000, window: int = 400, hop: int = 160, fft: int = 512,
               bands: int = 80, lowest: float = 0.0, highest: float = 8000.0) -> np.ndarray:  # fmt: skip
    """The logarithms of librosa's mel spectra (T, bands), with its defaults but for these sizes."""
    import librosa

    sizes = {"n_fft": fft, "win_length": window, "hop_length": hop, "n_mels": bands, "fmin": lowest, "fmax": highest}
    power = librosa.feature.melspectrogram(y=samples.astype(np.float64), sr=rate, **sizes)
    return np.asarray(np.log(np.maximum(power, 1e-10)).T)


def wav(samples: np.ndarray, rate: int = 16000, width: int = 2, channels: int = 1) -> bytes:
    """A file of Python's own `wave`, of samples from -1 to 1; 8 bits are unsigned."""
    scaled = np.round(samples.astype(np.float64) * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    data = (scaled + 128).astype("u1") if width == 1 else scaled.astype("<i4").view("u1").reshape(-1, 4)[:, :width]
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setparams((channels, width, rate, 0, "NONE", ""))
        written.writeframes(data.tobytes())
    return file.getvalue()


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_mel_spectra_are_those_of_librosa(form: dict[str, Any]) -> None:
    values = json.loads(STORED.read_text())[FORMS.index(form)]
    rows = Mel(**form).rows(sound(form.get("rate", 16000)), "f")
    assert rows.dtype == np.float32
    assert np.abs(rows[:: len(rows) // 6] - np.array(values)).max() < 1e-4
    assert rows[-1].max() < -23  # silence: the floor


def test_an_example_is_a_sound_of_a_few_rows() -> None:
    mel = Mel(bands=3)
    assert {len(mel.rows(mel.example_value(random.Random(seed)), "f")) for seed in range(99)} <= {*range(1, 14)}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:n_fft=")
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_mel_spectra_are_those_of_the_installed_librosa(form: dict[str, Any]) -> None:
    pytest.importorskip("librosa")
    rate = form.get("rate", 16000)
    noise = np.random.default_rng(1).normal(0, 0.1, 3 * rate).astype(np.float32)
    for samples in (sound(rate), noise, sound(rate)[:1], sound(rate)[:37]):
        assert np.abs(Mel(**form).rows(samples, "f") - of_librosa(samples, **form)).max() < 1e-4


def test_another_rate_is_resampled_by_the_stated_filter() -> None:
    x = np.random.default_rng(1).normal(0, 0.1, 700)
    for rate, wanted in ((44100, 16000), (8000, 16000), (16001, 16000), (48000, 16000)):
        c = 0.95 * min(1, wanted / rate)
        count = -(-len(x) * wanted // rate)
        u = c * (np.arange(len(x)) - np.arange(count)[:, None] * rate / wanted)
        expected = np.where(abs(u) < 16, c * np.sinc(u) * np.cos(np.pi * u / 32) ** 2, 0) @ x
        resampled = resample(x, rate, wanted)
        assert resampled.shape == expected.shape
        assert np.abs(resampled - expected).max() < 1e-9
    tone, high = (np.sin(2 * np.pi * pitch * np.arange(4410) / 44100) for pitch in (1000, 9500))
    expected = np.sin(2 * np.pi * 1000 * np.arange(1600) / 16000)
    assert np.abs(resample(tone, 44100, 16000) - expected)[100:-100].max() < 1e-3
    assert np.abs(resample(high, 44100, 16000)[100:-100]).max() < 1e-3  # 16 kHz has no such tone


@pytest.mark.parametrize(("width", "close"), [(1, 2e-2), (2, 1e-4), (3, 1e-6), (4, 1e-6)])
def test_pcm_of_every_width_is_read_and_channels_are_averaged(width: int, close: float, tmp_path: Path) -> None:
    left, right = sound(8000), sound(8000)[::-1]
    data = wav(np.stack([left, right], 1), 8000, width, 2)
    samples, rate = read_wav(data, "f")
    assert rate == 8000
    assert np.abs(samples - (left + right) / 2).max() < close
    (tmp_path / "a.wav").write_bytes(data)
    rows = Mel().rows(tmp_path / "a.wav", "f")
    assert len(rows) == 1 + 2 * len(left) // 160
    text = base64.b64encode(data).decode()
    for value in (data, text, f"data:audio/wav;base64,{text}"):
        assert np.array_equal(Mel().rows(value, "f"), rows)
    assert Mel(bands=3).rows([], "f").shape == (0, 3)


def test_float_and_extensible_wav_and_other_chunks_are_read() -> None:
    samples = sound(16000)
    form = struct.pack("<HHIIHH", 3, 1, 16000, 64000, 4, 32)
    extensible = struct.pack("<HHIIHHHHI", 0xFFFE, 1, 16000, 64000, 4, 32, 22, 32, 4) + struct.pack("<H", 3) + 14 * b"x"
    for header in (form, extensible):
        chunks = b"".join(
            name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)
            for name, body in ((b"LIST", b"odd"), (b"fmt ", header), (b"data", samples.tobytes()))
        )
        data = b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks
        assert np.array_equal(read_wav(data, "f")[0], samples)
        assert np.array_equal(Mel().rows(data, "f"), Mel().rows(samples.tolist(), "f"))


WAV = wav(sound(16000))
CUT = "is a WAV that states "


def test_a_wav_from_a_pipe_is_read_to_its_end_and_an_array_may_have_its_rate() -> None:
    samples, _ = read_wav(WAV, "f")
    for size in (0, 0x7FFFF000, 0xFFFFFFFF):
        for whole in (size, min(size + 36, 0xFFFFFFFF)) if size else (0,):
            piped = WAV[:4] + struct.pack("<I", whole) + WAV[8:40] + struct.pack("<I", size) + WAV[44:]
            for cut in (piped, piped + b"\1"):
                assert np.array_equal(read_wav(cut, "f")[0], samples)
    values = sound(8000)
    told = {"array": values, "sampling_rate": 8000, "path": None}
    assert np.abs(Mel().rows(told, "f") - Mel().rows(wav(values, 8000, 4), "f")).max() < 1e-3
    for wrong, words in (
        ({"sampling_rate": 16}, "16 samples a second"),
        ({"sampling_rate": "8k"}, "sampling_rate '8k'"),
    ):
        with pytest.raises(DataError, match=words):
            Mel().rows(told | wrong, "f")


def test_the_length_of_a_sound_is_read_from_its_header_and_limited_after_resampling() -> None:
    values = sound(8000, 1.0)
    for form in (wav(values, 8000), {"array": values.tolist(), "sampling_rate": 8000}):
        assert Mel().media_tokens(form, "f") == 1 + 16_000 // 256
        for read in (Mel().limited(0, 15_999).media_tokens, Mel().limited(0, 15_999).rows):
            with pytest.raises(DataError, match="f has 16,000 samples at the rate 16,000, and at most 15,999 are read"):
                read(form, "f")
    flac = io.BytesIO()
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(flac, np.stack([values] * 6, 1), 8000, format="FLAC")
    assert Mel().media_tokens(flac.getvalue(), "f") == 1 + 8_000 * 6 // 256
    assert Mel().rows(flac.getvalue(), "f").shape == Mel().rows(wav(values, 8000), "f").shape
    unknown = flac.getvalue()[:18] + bytes(8) + flac.getvalue()[26:]
    assert Mel().limited(0, 10**6).media_tokens(unknown, "f") == 1 + 10**6 // 256
    assert Mel().limited(0, 10**6).media_tokens(b"OggS" + bytes(99), "f") == 1 + 10**6 // 256
    assert "rate / hop * fft must be at most 1,048,576" in Mel(rate=192_000, hop=384, fft=8192).out_of_bounds()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (WAV[:40] + struct.pack("<I", 10**6) + WAV[44:], CUT),
        (WAV[:40] + struct.pack("<I", len(WAV) - 42) + WAV[44:], CUT),  # more than the file
        (WAV[:-2], "or has no sound; is the file whole"),
        (WAV[:36], "or has no sound; is the file whole"),
        (b"ID3" + WAV, "convert it"),
        (b"\x89PNG" + WAV, "is not a WAV; convert it"),
        (b"", "is not a WAV"),
        (wav(sound(16000)[:0]), "is a sound without samples"),
        (WAV[:24] + struct.pack("<I", 2**31) + WAV[28:], "has 2,147,483,648 samples a second; 1,000 to 192,000"),
        (WAV[:24] + bytes(4) + WAV[28:], "has 0 samples a second"),
        (WAV[:20] + struct.pack("<H", 85) + WAV[22:], "is a WAV of format 85 with 1 channels of 16 bits in 2 bytes"),
        (WAV[:22] + struct.pack("<H", 3) + WAV[24:], "format 1 with 3 channels of 16 bits in 2 bytes"),
        (wav(np.zeros(601_000), 1000, 1), "is longer than 600 seconds"),
        (bytes(MOST_BYTES + 1), "has 32,000,001 bytes, and at most 32,000,000 are read"),
        ("a.wav", "is a text that is not base64"),
        ("/etc/passwd", "base64"),
        ([0.0, float("nan")], "not finite"),
        ([1e300], "not finite"),
        ([10**400], "must have a sound, not list"),
        (WAV[:40] + struct.pack("<I", len(WAV) - 45) + WAV[44:], "ends within a sample"),
        ([0, 12_000, -700], "divide 16-bit samples by 32768"),
        ([[0.0, 1.0]], "must have a sound, not list"),
        (["a"], "must have a sound"),
        (None, "must have a sound, not NoneType; give a WAV"),
        (Path("there/is/none.wav"), "there is no such file"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_other_values_than_sounds_are_refused_with_a_fix(value: Any, words: str) -> None:
    with pytest.raises(DataError, match=r"^f:7: field 'a' ") as caught:
        Mel().rows(value, "f:7: field 'a'")
    assert words in str(caught.value)


def test_flac_is_read_where_soundfile_is_installed() -> None:
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, np.round(sound(16000).astype(np.float64) * 32767).astype(np.int16), 16000, format="FLAC")
    assert np.array_equal(Mel().rows(file.getvalue(), "f"), Mel().rows(WAV, "f"))
    for damaged in (file.getvalue()[:30], b"fLaC", b"OggS" + bytes(99)):
        with pytest.raises(DataError, match="cannot be read") as caught:
            Mel().rows(damaged, "f")
        assert "BytesIO" not in str(caught.value)


def test_flac_without_soundfile_names_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(DataError, match=r"^f is .*soundfile.*not installed: pip install .*soundfile"):
        Mel().rows(b"fLaC" + bytes(99), "f")


def test_a_sound_may_have_as_many_samples_as_a_server_allows() -> None:
    limited = Mel().limited(pixels=1, samples=16_000)
    assert len(limited.rows(sound(16_000, 1.0), "f")) > 9
    with pytest.raises(DataError, match="f has 16,001 samples at the rate 16,000, and at most 16,000 are read"):
        limited.rows(np.append(sound(16_000, 1.0), 0.0), "f")


@pytest.mark.parametrize("form", ["WAV", "FLAC"])
def test_the_samples_of_all_channels_together_are_limited_before_any_is_decoded(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile = pytest.importorskip("soundfile")
    monkeypatch.setattr("seqpipe.features.kinds.mel.MOST_SAMPLES", 1_000)
    for channels, count in ((1, 999), (8, 125), (8, 126)):
        file = io.BytesIO()
        soundfile.write(file, np.zeros((count, channels)), 16_000, format=form)
        for read in (Mel().media_tokens, Mel().rows):
            if count * channels > 1_000:
                with pytest.raises(DataError, match="or has too many channels; split it"):
                    read(file.getvalue(), "f")
            else:
                read(file.getvalue(), "f")


def test_a_warm_start_keeps_the_means_of_equal_spectra_only() -> None:
    older = Mel(means=(0.5,) * 40, deviations=(2.0,) * 40, bands=40)
    assert Mel(bands=40).initialise_from(older) is older
    for newer in (Mel(bands=23), Mel(bands=40, hop=200)):
        assert newer.initialise_from(older) is newer
    assert Mel().initialise_from(None) == Mel()


if __name__ == "__main__":
    tables = []
    for options in FORMS:
        table = of_librosa(sound(options.get("rate", 16000)), **options)
        tables.append(np.round(table[:: len(table) // 6], 6).tolist())
    STORED.write_text(json.dumps(tables) + "\n")
