"""Speech: mel features beside librosa's, and word error rates of spoken digits on voices that training did not have.

    python benchmarks/speech.py mel                 # needs librosa (and scikit-learn, which it imports)
    python benchmarks/speech.py digits              # the shipped pipeline
    python benchmarks/speech.py digits --model plain
    python benchmarks/speech.py digits --times 3    # needs espeak-ng: 3,600 utterances of training

`mel`: the greatest difference of a log-mel value over speech (of pipelines/data), noise and tones, in float64 and in
librosa's usual float32. `digits`: `pipelines/spoken-digits.yaml` with one of MODELS, trained on as many times the
utterances in pipelines/data as `--times`; the voices of `new-voices` share neither accent nor variant with those of
training. Figures are recorded in runs/results.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import common
import numpy as np
from common import PREPARED, ROOT, RUNS

DATA = ROOT / "pipelines" / "data"
PIPELINE = ROOT / "pipelines" / "spoken-digits.yaml"
FORMS = {
    "16 kHz, 80 bands": {"rate": 16_000, "window": 400, "hop": 160, "fft": 512, "bands": 80, "highest": 8000.0},
    "16 kHz, 40 bands, fft as the window": {"rate": 16_000, "window": 400, "hop": 160, "fft": 400, "bands": 40},
    "8 kHz, 40 bands": {"rate": 8_000, "window": 200, "hop": 80, "fft": 256, "bands": 40, "highest": 4000.0},
}
MODELS = {
    "subsample": [],
    "plain": [f"inputs.audio.embedding.{option}=0" for option in ("masked_bands", "masked_frames", "warp")],
    "pyramid": ["inputs.audio.encoder=[{use: pyramid, hidden: 96, layers: 2, dropout: 0.2}]"],
}


def sounds(rate: int) -> Iterator[np.ndarray]:
    """Speech, noise and tones over silence, float32."""
    from seqpipe.features.kinds.mel import read_wav, resample
    from seqpipe.features.media import read_bytes

    for line in (DATA / "spoken-digits" / "test.jsonl").read_text(encoding="utf-8").splitlines()[:8]:
        yield resample(*read_wav(read_bytes(json.loads(line)["audio"], "audio"), "audio"), rate).astype(np.float32)
    random = np.random.default_rng(1)
    t = np.arange(3 * rate) / rate
    for loudness in (1e-4, 0.01, 1.0):
        yield (loudness * random.uniform(-1, 1, len(t))).astype(np.float32)
        yield np.where(t < 2, loudness * np.sin(2 * np.pi * (100 + 500 * t) * t), 0).astype(np.float32)


def mel() -> None:
    """Print and record the greatest differences to librosa."""
    import librosa

    from seqpipe.features.kinds.mel import Mel

    table = common.Table("speech", "mel", "form", "values", "float64", "float32")
    for name, form in FORMS.items():
        kind, count, worst = Mel(**form), 0, {np.float64: 0.0, np.float32: 0.0}  # type: ignore[arg-type]
        sizes = {"sr": kind.rate, "n_fft": kind.fft, "win_length": kind.window, "hop_length": kind.hop}
        bands = {"n_mels": kind.bands, "fmin": kind.lowest, "fmax": kind.highest}
        for samples in sounds(kind.rate):
            rows = kind.rows(samples, "sound")
            count += rows.size
            for dtype in worst:
                power = librosa.feature.melspectrogram(y=samples.astype(dtype), **sizes, **bands)
                gap = float(np.abs(rows - np.log(np.maximum(power, 1e-10)).T).max())
                worst[dtype] = max(worst[dtype], gap)
        figures = [f"{gap:.1e}" for gap in worst.values()]
        table.row(name, f"{count:,}", *figures, peer=f"librosa {librosa.__version__}", asked="1e-4 in float64")


def digits(times: int, model: str) -> None:
    """Train on the shipped utterances, or on as many times as many; print and record word error rates."""
    folder = DATA if times == 1 else PREPARED / f"spoken-digits-{times}"
    if not folder.exists():
        script = DATA / "make_spoken_digits.py"
        subprocess.run([sys.executable, script, "--out", folder, "--times", str(times)], check=True)
    data = folder / "spoken-digits"
    files = {"test": str(data / "test.jsonl"), "new-voices": str(data / "test-new-voices.jsonl")}
    parts = [f"data.train={data / 'train.jsonl'}", f"data.dev={data / 'dev.jsonl'}", f"data.test={json.dumps(files)}"]
    run = f"bench-spoken-digits-{model}"
    result = common.seqpipe_json(
        "run", PIPELINE, f"name={run}", *parts, *MODELS[model], "--device", "cpu", "--fresh", "-q"
    )
    columns = ("utterances", "WER, voices of training", "WER, unseen voices", "exact, unseen voices", "seconds")
    table = common.Table("speech", "digits", "model", *columns)
    count = len((data / "train.jsonl").read_text(encoding="utf-8").splitlines())
    scores = result["scores"]
    rates = [f"{100 * scores[test]['wer']:.1f}" for test in files]
    exact = f"{100 * scores['new-voices']['exact_match']:.1f}"
    table.row(model, f"{count:,}", *rates, exact, f"{training_seconds(RUNS / run):.0f}", asked="12 % on unseen voices")


def training_seconds(run: Path) -> float:
    """The seconds that a run's training took."""
    (history,) = run.rglob("metrics.jsonl")
    return float(sum(json.loads(line)["seconds"] for line in history.read_text(encoding="utf-8").splitlines()))


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("what", choices=("mel", "digits"))
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--model", choices=tuple(MODELS), default="subsample")
    arguments = parser.parse_args()
    if arguments.what == "mel":
        mel()
    else:
        digits(arguments.times, arguments.model)


if __name__ == "__main__":
    main()
