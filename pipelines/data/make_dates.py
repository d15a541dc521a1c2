"""Dates as people write them and the same as ISO 8601 to `dates`, the same bytes each time."""

import argparse
import json
from datetime import date, timedelta
from pathlib import Path

from dice import Dice

SEED = 20_261_122
SIZES = {"train": 8000, "dev": 400, "test": 500, "test-new-templates": 500}
FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ONES = (
    *("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
NTH = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
    "twenty": "twentieth",
    "thirty": "thirtieth",
}

USUAL = (
    *("{d} {month} {year}", "{dth} {month} {year}", "{month} {d}, {year}", "{month} {dth}, {year}"),
    *("{d} {mon} {year}", "{mon} {d}, {year}", "{mon}. {d}, {year}", "{d}-{mon}-{yy}", "{dd}-{MON}-{year}"),
    *("{day}, {d} {month} {year}", "{day}, {month} {d}, {year}", "{dy}, {dd} {mon} {year}", "{dy} {mon} {dd} {year}"),
    *(
        "{d}.{m}.{year}",
        "{dd}.{mm}.{year}",
        "{d}. {month} {year}",
        "{dd}.{mm}.{yy}",
        "{year}/{mm}/{dd}",
        "{year}.{m}.{d}",
    ),
    *(
        "{nth} of {month} {year}",
        "the {nth} of {month}, {year}",
        "{month} the {nth}, {year}",
        "the {dth} of {month} {year}",
    ),
    *("{month} {d} '{yy}", "{d} {month} '{yy}", "{year}, {month} {d}", "{year} {mon} {d}", "{year}年{m}月{d}日"),
    *(
        "the {nth} of {month}, {words}",
        "{month} {dth}, {words}",
        "{d} {month} {words}",
        "{day} the {dth} of {month} {year}",
    ),
)
NEW = (
    *("{day} the {nth} of {month}, {year}", "{month} the {dth} {year}", "{d}-{month}-{year}", "{mon} {dth} '{yy}"),
    *("{dy}, the {dth} of {mon} {year}", "{day}, {year} {month} {d}", "{nth} {month} {words}", "{year}-{mon}-{dd}"),
    *("{day}, {d}.{m}.{year}", "on {month} {d} of {year}"),
)


def number(n: int) -> str:
    """1 to 99 in words."""
    if n < len(ONES):
        return ONES[n]
    return TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")


def nth(n: int) -> str:
    """`third`, `twenty-first`."""
    before, dash, last = number(n).rpartition("-")
    return before + dash + NTH.get(last, f"{last}th")


def year_in_words(year: int) -> str:
    """`nineteen eighty-four`, `two thousand and seven`, `twenty sixteen`."""
    century, rest = divmod(year, 100)
    if 2000 <= year < 2010:
        return f"two thousand and {number(rest)}" if rest else "two thousand"
    return f"{number(century)} {number(rest) if rest >= 10 else f'oh {number(rest)}' if rest else 'hundred'}"


def filled(template: str, day: date) -> str:
    """The date in this form; two digits of a year mean 1930 to 2029."""
    d, m = day.day, day.month
    th = "th" if 10 < d < 14 else {1: "st", 2: "nd", 3: "rd"}.get(d % 10, "th")
    month, weekday = MONTHS[m - 1], DAYS[day.weekday()]
    mon = month[:3]
    return template.format(
        d=d,
        dd=f"{d:02}",
        dth=f"{d}{th}",
        nth=nth(d),
        m=m,
        mm=f"{m:02}",
        month=month,
        mon=mon,
        MON=mon.upper(),
        day=weekday,
        dy=weekday[:3],
        year=day.year,
        yy=f"{day.year % 100:02}",
        words=year_in_words(day.year),
    )


def pair(dice: Dice, templates: tuple[str, ...]) -> tuple[str, str]:
    """A date as somebody might write it, and in ISO 8601."""
    template = dice.pick(templates)
    day = FIRST + timedelta(dice.below((LAST - FIRST).days + 1))
    while "{yy}" in template and not 1930 <= day.year < 2030:
        day = FIRST + timedelta(dice.below((LAST - FIRST).days + 1))
    text = filled(template, day)
    return (text.lower() if dice.chance(0.2) else text), day.isoformat()


def corpus() -> dict[str, list[tuple[str, str]]]:
    """The pairs of each file; no text stands twice."""
    dice = Dice(SEED)
    used: set[str] = set()
    found: dict[str, list[tuple[str, str]]] = {}
    for file, size in SIZES.items():
        pairs = found[file] = []
        while len(pairs) < size:
            text, iso = pair(dice, NEW if file == "test-new-templates" else USUAL)
            if text not in used:
                used.add(text)
                pairs.append((text, iso))
    return found


def main() -> None:
    """Write the four files."""
    parser = argparse.ArgumentParser(description="Write dates as people write them, and in ISO 8601.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    folder = parser.parse_args().out / "dates"
    folder.mkdir(parents=True, exist_ok=True)
    for file, pairs in corpus().items():
        rows = (json.dumps({"text": text, "target": iso}, ensure_ascii=False) for text, iso in pairs)
        (folder / f"{file}.jsonl").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
