"""Writes train.txt, dev.txt and test.txt: invented remarks on food, in fastText's lines, with labels of an order.

What an adjective says is turned by its neighbours ("hardly tasty", "not stale at all") or by its ending ("tastiest"),
so counting words does not tell the label.
"""

import itertools
import random
from pathlib import Path

THINGS = ["soup", "bread", "curry", "stew", "pasta", "cake"]
PRAISE = [("tasty", "tastiest"), ("fresh", "freshest"), ("crisp", "crispest"), ("rich", "richest")]
BLAME = [("stale", "stalest"), ("bland", "blandest"), ("soggy", "soggiest"), ("salty", "saltiest")]
REMARKS = {
    "superb": ["the {praised} {thing} in town", "the {thing} was really {praise}"],
    "good": ["the {thing} was {praise}", "a {praise} {thing}", "the {thing} was not {blame} at all"],
    "fair": ["the {thing} was {praise} but {blame}", "neither {praise} nor {blame} , this {thing}"],
    "poor": ["the {thing} was {blame}", "a {blame} {thing}", "the {thing} was hardly {praise}"],
    "awful": ["the {blamed} {thing} in town", "the {thing} was really {blame}"],
}
COUNTS = {"train": 26, "dev": 6, "test": 8}  # of each label: 200 lines in all

chance = random.Random(1)
lines: dict[str, list[str]] = {name: [] for name in COUNTS}
for label, remarks in REMARKS.items():
    drawn = [
        remark.format(thing=thing, praise=praise, praised=praised, blame=blame, blamed=blamed)
        for remark, thing, (praise, praised), (blame, blamed) in itertools.product(remarks, THINGS, PRAISE, BLAME)
    ]
    different = sorted(set(drawn))
    chance.shuffle(different)
    for name, count in COUNTS.items():
        lines[name] += [f"__label__{label} {different.pop()}\n" for _ in range(count)]
for name, some in lines.items():
    chance.shuffle(some)
    Path(__file__).with_name(f"{name}.txt").write_text("".join(some), encoding="utf-8")
