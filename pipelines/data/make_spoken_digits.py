"""Write strings of digits that espeak-ng speaks, and their words, to `spoken-digits`.

    python pipelines/data/make_spoken_digits.py                         # the files of this folder
    python pipelines/data/make_spoken_digits.py --out FOLDER --times 3  # three times as many utterances

A voice is an accent and a variant of espeak-ng, which changes the vocal tract and the source. The voices of
`test-new-voices` share neither the accent nor the variant with those of the other files; no variant of training has
half of the parameters of one of theirs. Sounds are WAV of 8 bits at 8 kHz in base64. Needs espeak-ng (of Debian, for
instance) and seqpipe, whose resampling it uses.
"""

import argparse
import base64
import io
import json
import subprocess
import tempfile
import wave
from pathlib import Path

import numpy as np
from dice import Dice

from seqpipe.features.kinds.mel import read_wav, resample

SEED = 20_261_126
SIZES = {"train": 1_200, "dev": 60, "test": 120, "test-new-voices": 200}
RATE = 8_000
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ACCENTS = ("en-gb", "en-us", "en-gb-x-rp", "en-029", "en-gb-x-gbclan")
VARIANTS = ("m1", "m2", "m3", "m5", "m6", "m8", "f1", "f2", "f4", "klatt", "klatt3", "Andy", "Annie", "linda", "max")
VARIANTS += ("belinda", "benjamin", "boris", "caleb", "david", "ed", "edward", "grandma", "grandpa", "iven", "john")
VARIANTS += ("paul", "steph", "travis", "zac", "Alex", "Andrea", "Denis", "Diogo", "Gene", "Gene2", "Henrique", "Hugo")
VARIANTS += ("Jacky", "Lee", "Marco", "Mike", "Nguyen", "RicishayMax", "RicishayMax2", "RicishayMax3", "Storm")
VARIANTS += ("Tweaky", "adam", "anika", "announcer", "antonio", "aunty", "edward2", "iven2", "iven3", "iven4")
VARIANTS += ("kaukovalta", "klatt2", "klatt4", "klatt5", "klatt6", "marcelo", "michel", "miguel", "norbert", "pablo")
VARIANTS += ("pedro", "quincy", "rob", "robert", "sandro", "shelby", "steph2", "steph3", "victor")
NEW_VOICES = ("en-gb-scotland+f3", "en-gb-x-gbcwmd+m4", "en-us-nyc+f5", "en-gb-scotland+m7", "en-gb-x-gbcwmd+Alicia")
NEW_VOICES += ("en-us-nyc+Michael",)
QUIET, BEFORE = 0.02, 0.03  # share of the peak below which the ends are cut, and seconds that are left


def spoken(text: str, voice: str, speed: int, pitch: int, file: Path) -> bytes:
    """The WAV of a text, at full scale, without the silence at its ends."""
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "-w", str(file), text]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or done.stderr:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    samples, rate = read_wav(file.read_bytes(), str(file))
    samples = resample(samples, rate, RATE)
    samples = samples / np.abs(samples).max()
    loud, rest = np.flatnonzero(np.abs(samples) > QUIET), int(BEFORE * RATE)
    samples = samples[max(0, loud[0] - rest) : loud[-1] + rest]
    data = io.BytesIO()
    with wave.open(data, "wb") as written:
        written.setparams((1, 1, RATE, 0, "NONE", ""))
        written.writeframes(np.round(128 + 126 * samples).astype(np.uint8).tobytes())
    return data.getvalue()


def main() -> None:
    """Write the four files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    parser.add_argument("--times", type=int, default=1, help="how many times as many records as in this folder")
    options = parser.parse_args()
    folder = options.out / "spoken-digits"
    folder.mkdir(parents=True, exist_ok=True)
    dice = Dice(SEED)
    with tempfile.TemporaryDirectory() as temporary:
        for file, size in SIZES.items():
            lines = []
            for _ in range(size * options.times):
                words = " ".join(dice.pick(DIGITS) for _ in range(1 + dice.below(5)))
                voice = (
                    dice.pick(NEW_VOICES)
                    if file == "test-new-voices"
                    else f"{dice.pick(ACCENTS)}+{dice.pick(VARIANTS)}"
                )
                sound = spoken(words, voice, 140 + dice.below(81), 20 + dice.below(61), Path(temporary, "a.wav"))
                row = {"audio": base64.b64encode(sound).decode(), "target": words, "voice": voice}
                lines.append(f"{json.dumps(row)}\n")
            (folder / f"{file}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
