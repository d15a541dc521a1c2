"""Tomorrow's weather in numbers and a tone to the sentence that tells it, to `describe`, the same bytes each time."""

import argparse
import json
from pathlib import Path

from dice import Dice

SEED = 20_261_124
SIZES = {"train": 4000, "dev": 200, "test": 400}
TONES = ("plain", "friendly", "terse")

# Up to which number each word is said; the last has no bound.
WARMTH = ((-5, "freezing"), (5, "cold"), (13, "cool"), (20, "mild"), (27, "warm"), (None, "hot"))
WIND = ((6, "calm"), (20, "a light breeze"), (40, "windy"), (None, "a storm"))
RAIN = ((0.1, "dry"), (2, "a few drops"), (10, "rain"), (None, "heavy rain"))


def said(number: float, scale: tuple[tuple[float | None, str], ...]) -> str:
    """The word for a number."""
    return next(word for bound, word in scale if bound is None or number < bound)


def numbers(dice: Dice) -> list[float]:
    """Degrees Celsius, wind in km/h, rain in mm, cloud in per cent."""
    rain = 0.0 if dice.chance(0.4) else dice.below(200) / 10
    cloud = 60 + dice.below(41) if rain else dice.below(101)
    return [(dice.below(500) - 150) / 10, float(dice.below(70)), rain, float(cloud)]


def sentence(weather: list[float], tone: str) -> str:
    """What is said of the weather in a tone; what nobody needs to be told is left out."""
    degrees, wind, rain, cloud = weather
    warmth, blows, falls = said(degrees, WARMTH), said(wind, WIND), said(rain, RAIN)
    wet = falls != "dry"
    if falls in ("rain", "heavy rain") and degrees < 0:
        falls = falls.replace("rain", "snow")
    sky = "clouds" if cloud > 70 else "sun and clouds" if cloud > 30 else "sunshine"
    if tone == "terse":
        return ", ".join([warmth, *([blows] if wind >= 20 else []), falls if wet else sky])
    if tone == "plain":
        told = f"It will be {warmth}, with {falls if wet else sky}"
        return told + {"calm": ".", "a light breeze": " and a light breeze."}.get(blows, f" and {_strong(blows)}.")
    advice = "take a coat" if degrees < 5 else "take an umbrella" if wet else "leave your coat at home"
    if blows == "a storm":
        advice = "better stay in"
    begins = "What a day" if not wet and degrees >= 13 else "Well then"
    return f"{begins}: {warmth} and {falls if wet else sky}, so {advice}!"


def _strong(blows: str) -> str:
    return "strong wind" if blows == "windy" else blows


def main() -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description="Write weather and what is said of it.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    folder = parser.parse_args().out / "describe"
    folder.mkdir(parents=True, exist_ok=True)
    dice = Dice(SEED)
    for file, size in SIZES.items():
        rows = []
        for _ in range(size):
            weather, tone = numbers(dice), dice.pick(TONES)
            rows.append({"weather": weather, "tone": tone, "target": sentence(weather, tone)})
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / f"{file}.jsonl").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
