"""Short notices and the one line that matters in them, to `notices`, the same bytes each time.

A notice tells one thing to be done or known and two or three others of the same kind, which are settled or no concern
of the reader's: the line repeats the names, codes and amounts of the first. All names are invented; no word of a name
in dev or in a test set is one of training.

Varied notices have other names (random letters, hyphens, letters outside ASCII), codes of many forms, up to three
others or none, and more around their sentences. A fourth of the training data is varied, a fourth of dev, and all of
`test-new-names`.
"""

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dice import Dice

SEED = 20_261_122
SIZES = {"train": 4000, "dev": 300, "test": 500, "test-new-templates": 500}
VARIED_SIZES = {"train": 1500, "dev": 100, "test-new-names": 500}  # added behind the others
ONSETS = ("b", "br", "d", "f", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "r", "s", "st", "t", "v", "w", "z")
VOWELS = ("a", "e", "i", "o", "u")
CODAS = ("", "", "", "", "", "l", "m", "n", "r", "s")
TRADES = ("Mining", "Foods", "Freight", "Tools", "Glass", "Travel", "Paper", "Motors")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August")
TOPICS = ("budget review", "team meeting", "safety training", "job interview", "design review", "press talk")
GREETINGS = ("", "", "", "Dear all,", "Good morning,", "For your attention:", "Notice:", "Hello,")
LEADS = (
    "As you may have read in the letter of last week,",
    "We have been asked by the office on the second floor to pass on the following:",
    "Since many of you called us about it this morning, here is what we know:",
    "Just so that nobody is surprised:",
    "One more thing before the weekend, and then you will hear no more from us:",
    "After a long talk with all who are concerned, we can tell you this:",
)
TAILS = (
    ", and we thank you for your patience",
    ", so please do not ask at the front desk",
    ", which was decided only yesterday after some discussion",
    ", in case that you have not heard of it yet",
)
ASIDES = (
    "The canteen will be closed on Friday.",
    "Please keep the doors of the building shut while it is cold.",
    "If you have a question, write to the office, and we will answer as soon as we can.",
    "There is coffee in the kitchen for everybody who comes early.",
    "We wish you all a quiet week.",
)
SUBJECTS = (  # of varied topics; each fourth is in `test-new-names` only, as are those of the forms
    *("fire", "garden", "roof", "choir", "harvest", "library", "rescue", "pottery", "winter", "rowing", "kitchen"),
    *("parents", "chess", "tax", "orchard", "welcome", "summer", "theatre", "bicycle", "pension", "bridge", "recipe"),
    *("lantern", "singing", "climbing", "data", "harbour", "poetry", "repair", "election", "forest", "quality"),
    *("museum", "market", "sewing", "school", "voting", "river", "painting", "savings", "snow", "contract"),
)
FORMS = (
    *("drill", "lesson", "walk", "workshop", "tour", "rehearsal", "exam", "show", "dinner", "contest", "course"),
    *("breakfast", "lecture", "party", "hearing", "reading", "session", "auction", "fair", "debate", "ceremony"),
)
CONSONANTS = "bcdfghjklmnpqrstvwxz"
ALPHABETS = (  # vowels and consonants
    ("aeiouáéíóúäöüåøæ", "bčćďđfghjklłmnňńñprřsšśßtťvwzžżźç"),
    ("αειουωη", "βγδζθκλμνξπρστφχψ"),
    ("аеиоуыэюя", "бвгджзклмнпрстфхцчшщ"),
)


class Kind(NamedTuple):
    """One thing that notices are about.

    `line` is what matters of it. `frames` are sentences with a gap `<>`, which says whether it matters: one of `told`
    for the thing that the line is of, one of `settled` for the others. `new_frames` are those of the new templates.
    """

    line: str
    told: Sequence[str]
    settled: Sequence[str]
    frames: Sequence[str]
    new_frames: Sequence[str]


KINDS = (
    Kind(
        "Pay {firm} {amount} for {code}.",
        ("is still open", "has not been paid", "remains unpaid", "is overdue", "was never paid"),
        ("was paid in {month}", "has been settled", "was cancelled", "is paid already", "was sent by mistake"),
        (
            "Invoice {code} from {firm} for {amount} <>.",
            "The invoice of {firm}, number {code}, <>: {amount}.",
            "{firm} tells us that invoice {code} over {amount} <>.",
            "{amount} to {firm}: invoice {code} <>.",
            "According to {firm}, {code} <>; the sum is {amount}.",
            "A sum of {amount} for {firm} <>, which is about {code}.",
            "Number {code} <>, says {firm}, and it is an invoice over {amount}.",
            "The invoice over {amount}, number {code}, <>, says {firm}.",
            "Since {code} <>, {firm} asks for {amount} or says that it does not.",
            "An invoice over {amount} <>: {code} from {firm}.",
            "As for {firm} and the sum of {amount}: {code} <>.",
            "What {firm} asks for in {code}, {amount}, <>.",
        ),
        (
            "The sum of {amount} that {firm} asks for in {code} <>.",
            "Number {code}, an invoice over {amount}, <>, says {firm}.",
            "As {firm} says, invoice {code} <>, and the sum is {amount}.",
        ),
    ),
    Kind(
        "{person}: fetch parcel {code} in {place}.",
        ("is waiting", "can be fetched", "lies ready", "has arrived"),
        ("was fetched in {month}", "went back to the sender", "was lost on the way", "is not here yet"),
        (
            "Parcel {code} for {person} <> in {place}.",
            "In {place} a parcel for {person} <>, number {code}.",
            "About the parcel of {person}: {code} <> in {place}.",
            "For {person}: parcel {code} <>, says the counter in {place}.",
            "The parcel with the number {code}, which is for {person}, <> in {place}.",
            "Please tell {person} that {code} <> in {place}.",
            "A parcel <>, says the counter in {place}: {code}, for {person}.",
            "Number {code} <>, please tell {person}, and the counter is that in {place}.",
            "At the counter in {place} they say that {code} <>, a parcel for {person}.",
            "{person}, your parcel in {place} <>: it is {code}.",
            "As they say in {place}, number {code} <>, a parcel of {person}.",
            "The counter in {place} tells {person} that the parcel <>, number {code}.",
            "In {place} {code} <> for {person}.",
            "The parcel of {person} in {place} <>, with the number {code}.",
        ),
        (
            "At the counter in {place} {code} <>, which is a parcel for {person}.",
            "A parcel for {person} <>: number {code}, in {place}.",
            "Please tell {person} that in {place} parcel {code} <>.",
        ),
    ),
    Kind(
        "The {topic} with {person} is in {room}.",
        ("moves to", "now takes place in", "will be held in", "was moved to"),
        ("is no longer in", "was cancelled, which had been planned in", "took place last week in"),
        (
            "The {topic} with {person} <> {room}.",
            "{person} says that the {topic} <> {room}.",
            "Because of the works the {topic} of {person} <> {room}.",
            "The {topic}, as we are told, <> {room}: {person} leads it.",
            "The {topic} that {person} leads <> {room}.",
            "All who come to the {topic} with {person}: it <> {room}.",
            "About the {topic}: as {person} says, it <> {room}.",
            "With {person} as its head, the {topic} <> {room}.",
            "It <> {room}, says {person} about the {topic}.",
            "{person} leads the {topic}, and that <> {room}.",
            "Please tell all that the {topic} <> {room}, says {person}.",
            "Since {month} it is known that the {topic} of {person} <> {room}.",
        ),
        (
            "As {person} says, the {topic} <> {room}.",
            "It <> {room}: the {topic} that {person} leads.",
            "Please tell all who come to the {topic} of {person} that it <> {room}.",
        ),
    ),
    Kind(
        "{person} is the new head of {firm}.",
        ("becomes", "was chosen as", "starts in {month} as", "will be"),
        ("was not chosen as", "no longer wants to be", "left in {month} as", "declined to be"),
        (
            "{person} <> head of {firm}.",
            "{firm} has decided: {person} <> its head.",
            "At {firm} {person} <> head.",
            "As {firm} tells us, {person} <> head.",
            "It is known at {firm}: {person} <> its head.",
            "About the head of {firm}: {person} <> it.",
            "As we are told, {person} <> head, which is news from {firm}.",
            "News from {firm}: {person}, we are told, <> its head.",
            "{person}, says {firm}, <> head.",
            "We are told by {firm} that {person} <> its head.",
            "Please tell all that {person} <> head of {firm}.",
            "{person} and {firm} have decided, and {person} <> its head.",
        ),
        (
            "It is decided at {firm} that {person} <> its head.",
            "{person}, as {firm} tells us, <> its head.",
            "News from {firm}, which has decided: {person} <> head.",
        ),
    ),
    Kind(
        "{code} to {place}: {platform}.",
        ("is late today and leaves from", "leaves today from", "was moved to", "will leave from"),
        ("left already from", "is cancelled and will not leave from", "leaves only tomorrow from"),
        (
            "Train {code} to {place} <> {platform}.",
            "To {place}: train {code} <> {platform}.",
            "Passengers to {place}, your train {code} <> {platform}.",
            "{code}, the train to {place}, <> {platform}.",
            "The train to {place} with the number {code} <> {platform}.",
            "For passengers of {code}: it <> {platform} to {place}.",
            "Number {code} <> {platform}, which is the train to {place}.",
            "Your train <> {platform}: {code} to {place}.",
            "About the train to {place}: number {code} <> {platform}.",
            "All passengers of {code}, please: the train to {place} <> {platform}.",
            "As for {place}, {code} <> {platform}.",
            "It <> {platform}: train {code}, which goes to {place}.",
        ),
        (
            "Passengers of {code}: your train to {place} <> {platform}.",
            "For {place} the train with the number {code} <> {platform}.",
            "The train {code}, which goes to {place}, <> {platform}.",
        ),
    ),
)


class Names:
    """Things with invented names and codes, none of which stands in another set."""

    def __init__(self, dice: Dice, taken: set[str]) -> None:
        self.dice, self.taken, self.own = dice, taken, set[str]()

    def fresh(self, make: Callable[[], str]) -> str:
        """Something made that no other set has, in capital letters or small ones."""
        while (word := make()).casefold() in self.taken:
            continue
        self.own.add(word.casefold())
        return word

    def word(self) -> str:
        """An invented word."""
        dice = self.dice

        def make() -> str:
            count = 2 + dice.chance(0.3)
            return "".join(dice.pick(ONSETS) + dice.pick(VOWELS) + dice.pick(CODAS) for _ in range(count)).capitalize()

        return self.fresh(make)

    def code(self) -> str:
        """Letters and a number."""
        dice = self.dice

        def make() -> str:
            letters = "".join(dice.pick("ABCDEFGHKLMNPRSTUVWXZ") for _ in range(1 + dice.below(3)))
            return f"{letters}-{dice.below(9000) + 1000}"

        return self.fresh(make)

    def thing(self) -> dict[str, str]:
        """What the gaps of a template are filled with."""
        dice = self.dice
        amount = f"{dice.below(9000) + 10:,}" + (f".{dice.below(100):02}" if dice.chance(0.3) else "")
        thing = {
            "firm": f"{self.word()} {dice.pick(TRADES)}" if dice.chance(0.7) else f"{self.word()} & {self.word()}",
            "person": f"{self.word()} {self.word()}",
            "place": self.word() if dice.chance(0.8) else f"{dice.pick(('Upper', 'New', 'Port'))} {self.word()}",
            "code": self.code(),
            "amount": f"{amount} {dice.pick(('CHF', 'EUR', 'USD'))}",
            "room": f"room {dice.pick('ABCDEFG')}{dice.below(900) + 100}",
            "platform": f"platform {dice.below(400) + 1}{dice.pick('abc')}",
            "topic": dice.pick(TOPICS),
            "month": dice.pick(MONTHS),
        }
        self.own |= {thing[gap].split()[-1].casefold() for gap in ("room", "platform")} | {amount}
        return thing


class VariedNames(Names):
    """Names of other letters and codes of other forms; rooms, platforms and amounts are in no other set either.

    Half of the topics are of a large list of words, of those held out or of the others, each of which is rare.
    """

    def __init__(self, dice: Dice, taken: set[str], held_out: bool) -> None:
        super().__init__(dice, taken)
        self.subjects, self.forms = (
            [word for i, word in enumerate(words) if (i % 4 == 0) == held_out] for words in (SUBJECTS, FORMS)
        )

    def word(self) -> str:
        """A name of syllables, of random letters, of letters outside ASCII, or of two names and a hyphen."""
        dice, form = self.dice, self.dice.below(10)
        if form < 3:
            return super().word()
        if form == 3:
            return f"{self.word()}-{self.word()}"
        if form < 7:
            return self.fresh(lambda: "".join(self.letters("aeiouy", CONSONANTS)).capitalize())
        vowels, consonants = dice.pick(ALPHABETS)
        return self.fresh(lambda: "".join(self.letters(vowels, consonants)).capitalize())

    def letters(self, vowels: str, consonants: str) -> list[str]:
        """Three to nine letters, some two fifths of them vowels."""
        return [self.dice.pick(vowels if self.dice.chance(0.4) else consonants) for _ in range(3 + self.dice.below(7))]

    def code(self) -> str:
        """Digits and capital letters, at most one hyphen or full stop after each group."""
        dice = self.dice

        def group(signs: str, longest: int) -> str:
            return "".join(dice.pick(signs) for _ in range(1 + dice.below(longest)))

        def make() -> str:
            groups = [group("0123456789", 5), group("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 3)]
            if dice.chance(0.3):
                groups.append(group("0123456789", 3))
            if len(groups) == 2 and dice.chance(0.7):
                groups.reverse()
            return dice.pick(("", "", "-", "-", ".")).join(groups)

        return self.fresh(make)

    def thing(self) -> dict[str, str]:
        dice, thing = self.dice, super().thing()
        amount, currency = thing["amount"].split()
        while amount in self.taken:
            amount = f"{dice.below(90_000) + 10:,}.{dice.below(100):02}"
        self.own.add(amount)
        if dice.chance(0.5):
            thing["topic"] = f"{dice.pick(self.subjects)} {dice.pick(self.forms)}"
        thing |= {
            "amount": f"{amount} {currency}",
            "room": f"room {self.code()}",
            "platform": f"platform {self.code()}",
        }
        return thing


def sentence(dice: Dice, frames: Sequence[str], phrases: Sequence[str], thing: Mapping[str, str]) -> str:
    """One of the frames with one of the phrases, filled in, and begun with a capital letter."""
    made = dice.pick(frames).replace("<>", dice.pick(phrases)).format(**thing)
    return made[0].upper() + made[1:]


def notice(dice: Dice, names: Names, new: bool) -> dict[str, str]:
    """A notice and its line: one thing told among two or three that are settled."""
    kind, told = dice.pick(KINDS), names.thing()
    frames = kind.new_frames if new else kind.frames
    sentences = [sentence(dice, frames, kind.told, told)]
    sentences += [sentence(dice, frames, kind.settled, names.thing()) for _ in range(2 + dice.chance(0.3))]
    text = " ".join([dice.pick(GREETINGS), *dice.shuffled(sentences)]).strip()
    return {"text": text, "target": kind.line.format(**told)}


def longer(dice: Dice, frame: str) -> str:
    """A frame as it is, or with more before or behind it."""
    if dice.chance(0.2):
        frame = f"{dice.pick(LEADS)} {frame[0].lower()}{frame[1:]}"
    return f"{frame.removesuffix('.')}{dice.pick(TAILS)}." if dice.chance(0.2) else frame


def varied_notice(dice: Dice, names: Names) -> dict[str, str]:
    """A notice of one thing told and none to three that are settled, with more around its sentences."""
    kind, told = dice.pick(KINDS), names.thing()
    frames = [longer(dice, frame) for frame in kind.frames]
    sentences = [sentence(dice, frames, kind.told, told)]
    sentences += [sentence(dice, frames, kind.settled, names.thing()) for _ in range(dice.below(4))]
    if dice.chance(0.3):
        sentences.append(dice.pick(ASIDES))
    text = " ".join([dice.pick(GREETINGS), *dice.shuffled(sentences)]).strip()
    return {"text": text, "target": kind.line.format(**told)}


def main() -> None:
    """Write the five files."""
    parser = argparse.ArgumentParser(description="Write notices and the line that matters in each.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    folder = parser.parse_args().out / "notices"
    folder.mkdir(parents=True, exist_ok=True)
    dice, taken = Dice(SEED), set[str]()
    parts: dict[str, list[dict[str, str]]] = {}
    for part, size in SIZES.items():
        names = Names(dice, set(taken))
        parts[part] = [notice(dice, names, part == "test-new-templates") for _ in range(size)]
        taken |= names.own
    plain = " ".join([*LEADS, *TAILS, *ASIDES, *(text for kind in KINDS for texts in kind[1:4] for text in texts)])
    taken |= {*re.findall(r"\w+", plain.casefold())}  # no varied name is a word of the sentences
    for part, size in VARIED_SIZES.items():
        varied = VariedNames(dice, set(taken), part == "test-new-names")
        parts.setdefault(part, []).extend(varied_notice(dice, varied) for _ in range(size))
        taken |= varied.own
    for part, rows in parts.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{part}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
