"""Questions to a library in many wordings, and its list of answers, to `faq`: the same bytes each time."""

import argparse
import json
from pathlib import Path

from dice import Dice
from make_assistant import expand, tidy
from words_en import choices

SEED = 20_240_517
SIZES = {"train": 1500, "dev": 200, "test": 300, "test-new-templates": 300}

RULES: dict[str, list[str]] = {
    "can": choices("can I; could I; may I; is it possible to; am I allowed to; how can I; how do I"),
    "want": choices("I want to; I would like to; I'd like to; I need to; I am trying to"),
    "book": choices("a book; a novel; this book; a guide; a comic; a volume; some books; a film; a record; a map"),
    "card": choices("card; library card; reader's card; membership card"),
    "day": choices("Monday; Tuesday; Friday; Saturday; Sunday; the weekend; a holiday; Christmas"),
    "child": choices("my son; my daughter; my children; a child; kids; my little sister"),
}
FRAMES = {
    "train": choices("""
        {}; {}; {}; {}; hello, {}; please tell me: {}; excuse me, {}; hi, {}; one question: {}; {} thank you;
        good morning, {}; sorry, {}"""),
    "new": choices("""
        I have been wondering for a while: {}; my neighbour could not tell me, so I ask you: {};
        quick one before I come by. {}; {} I could not find it on your page; dear team, {}"""),
}
# By the answer's id: the question of the list, its answer, wordings for train, and others for test-new-templates.
FAQ: dict[str, tuple[str, str, list[str], list[str]]] = {
    "hours": (
        "When are you open?",
        "The library is open from Tuesday to Saturday, from ten to seven.",
        choices("""
            when [are you|is the library] open?; what are your [opening hours|opening times]?; are you open on <day>?;
            when do you [open|close]?; until what time are you open?; is the library [open|closed] on <day>?"""),
        choices("at what hour do you open on <day>?; does the library close early on <day>?; opening times for <day>?"),
    ),
    "card-new": (
        "How do I get a library card?",
        "Come to the desk with a passport; the card is ready in five minutes.",
        choices("""
            <can> get a <card>?; where do I [apply|ask] for a <card>?; <want> become a member;
            <want> sign up for a <card>;
            what do I need for a new <card>?; how do I join the library?; <can> become a member?"""),
        choices("""
            which papers do you need to give me a new <card>?;
            I just moved here. how do I join and get my <card>?"""),
    ),
    "card-lost": (
        "I have lost my card.",
        "We block a lost card at once; a new one costs three euros.",
        choices("""
            I [lost|have lost|cannot find] my <card>; my <card> was [stolen|lost]; what if I lose my <card>?;
            somebody stole my <card>; my <card> is [gone|missing]; what do I do about a lost <card>?"""),
        choices("I think that I lost my <card> on the bus; my bag was stolen, and my <card> was in it"),
    ),
    "card-price": (
        "What does membership cost?",
        "A card costs twelve euros a year, and nothing for people under eighteen.",
        choices("""
            [what|how much] does [a <card>|membership] cost?; is membership free?; how much is a <card> [|a year]?;
            what is the [fee|price] of a <card>?; do I have to pay for a <card>?; is there a yearly fee?"""),
        choices("what would I pay for membership in a year?; is the <card> free, or is there a fee?"),
    ),
    "renew": (
        "How do I renew a loan?",
        "Renew a loan on our page, up to two times, if nobody else waits for it.",
        choices("""
            <can> [renew|extend|prolong] <book>?; <want> keep <book> longer; <want> [extend|renew] my loan;
            how often can a loan be [renewed|extended]?; <can> have <book> for another week?;
            I need more time for <book>"""),
        choices("I am not done with <book>. <can> extend the loan?; may the loan of <book> be renewed again?"),
    ),
    "late": (
        "What happens if I return something late?",
        "Each day that something is late costs twenty cents.",
        choices("""
            what if I [return|bring back] <book> late?; what is the [fine|charge] for a late return?; <book> is overdue;
            I am late with <book>; how high is the fine?; do you charge for overdue loans?;
            I forgot to bring back <book> in time"""),
        choices("do I pay a fine, as <book> is overdue by a week?; what is charged when I am late with <book>?"),
    ),
    "return": (
        "Where do I return books?",
        "Put them into the box beside the entrance, at any time.",
        choices("""
            where [do I|can I] [return|bring back|give back] <book>?; <can> return <book> at night?;
            is there a [box|drop] for returns?; <want> [return|give back] <book>;
            <can> drop off <book> when you are closed?;
            where is the box for returns?"""),
        choices("it is night and <want> give back <book>. is there a box?; where does one drop off <book>?"),
    ),
    "reserve": (
        "How do I reserve a book?",
        "Press Reserve beside the title in the catalogue; we write when it is here.",
        choices("""
            <can> [reserve|put a hold on] <book>?; <want> reserve <book>; <book> is lent out. <can> reserve it?;
            is there a waiting list for <book>?; put me on the waiting list; <can> have <book> kept for me?"""),
        choices("somebody else has <book>. is there a waiting list?; please keep <book> for me. <can> reserve it?"),
    ),
    "limit": (
        "How many books may I borrow?",
        "You may have twenty items at a time, five of them films.",
        choices("""
            how many [books|items|films] [may|can] I [borrow|take|have]?; what is the [limit|maximum] for loans?;
            is there a limit on [books|loans]?; how much can I borrow at a time?;
            can I take ten [books|films] at once?"""),
        choices("is there a maximum, or can I borrow as many items as I like?; how many items are allowed at once?"),
    ),
    "period": (
        "How long may I keep a book?",
        "Books may be kept for four weeks, films for one.",
        choices("""
            how long [may|can] I [keep|have] <book>?; for how many [weeks|days] can I keep <book>?;
            when is <book> due?; how long is [a loan|the loan period]?; when do I have to bring <book> back?;
            what is the loan period?"""),
        choices("how many weeks are there until <book> is due?; for how long is <book> mine to keep?"),
    ),
    "wifi": (
        "Is there Wi-Fi?",
        "The network is called Library; its password is on the back of your card.",
        choices("""
            is there [wifi|internet|a network]?; what is the [wifi password|password]?; <can> use the [wifi|internet]?;
            how do I [connect to|get into] the [wifi|network]?; the wifi does not work; do you have internet?"""),
        choices("my phone asks for the password of the network; I cannot connect my laptop to the internet"),
    ),
    "print": (
        "Can I print or copy?",
        "The printer on the first floor takes coins: ten cents a page.",
        choices("""
            <can> [print|copy|scan] [something|a page|a letter]?; where is the [printer|copier|scanner]?;
            what does [printing|copying|a copy] cost?; <want> [print|scan] a letter; do you have a [printer|copier]?;
            how much is a copy?"""),
        choices("I have a letter on a stick. where is the printer?; what do ten pages cost on the copier?"),
    ),
    "room": (
        "Can I book a room?",
        "Rooms for groups are booked at the desk, for two hours a day.",
        choices("""
            <can> [book|reserve|use] a [room|study room]?; do you have rooms for [groups|meetings]?;
            is there a [quiet room|study room|meeting room]?; <want> book a room; we need a room for a meeting;
            our group wants to meet. is there a room?"""),
        choices("four of us want to study in a room of our own; which room is there for a meeting on <day>?"),
    ),
    "parking": (
        "Where can I park?",
        "Park behind the house, on Mill Street; two hours are free.",
        choices("""
            where [can|do] I [park|leave] my [car|bicycle|bike]?; is there a [car park|parking lot]?; is parking free?;
            <can> park in front of the library?; how much is parking?; are there places to park?"""),
        choices("I come by car on <day>. is there parking?; do I pay to leave my car with you?"),
    ),
    "way": (
        "How do I get to the library?",
        "Take tram 4 to the town hall; we are across the square.",
        choices("""
            where [is the library|are you]?; how do I get [to the library|to you|there]?; what is your address?;
            which [bus|tram|train] [goes|stops] there?; is there a [bus|tram] stop near you?;
            <can> get there by tram?"""),
        choices("from the station, which tram do I take to get to you?; I am new in town. what is the address?"),
    ),
    "donate": (
        "Do you take books as a gift?",
        "We take books that are in good order, on the first Saturday of a month.",
        choices("""
            <can> [donate|give you] [old books|my books]?; do you [take|accept|want] [old books|donations|gifts]?;
            <want> [donate|give away] books; I have books to give away; where do I bring books that I donate?"""),
        choices("my aunt left me shelves of old books. do you take donations?; I would give away my books for nothing"),
    ),
    "suggest": (
        "Can you buy a book that you lack?",
        "Suggest it on our page, and we buy most of what is suggested.",
        choices("""
            <can> suggest [a title|a purchase]?; can you [buy|order] <book>?; you do not have <book>. can you buy it?;
            will you buy the new novel?; <want> suggest a title; do you take suggestions for new titles?"""),
        choices("the catalogue lacks <book>. will you order it?; here is a suggestion of a title to buy"),
    ),
    "ebooks": (
        "Do you lend e-books?",
        "E-books and audio books are in our app, Shelf, with the number of your card.",
        choices("""
            do you [have|lend] [ebooks|audio books]?; <can> [borrow|download] [an ebook|ebooks|an audio book]?;
            is there an app?; how do I read ebooks on my [phone|tablet]?; <want> download an audio book;
            where do I find the app?"""),
        choices("can one listen to audio books on a tablet?; which app on my phone shows your ebooks?"),
    ),
    "children": (
        "Is there something for children?",
        "Stories are read to children every Friday at four, and the third floor is theirs.",
        choices("""
            is there [something|anything] for <child>?; do you read stories to children?; when is story time?;
            <can> bring <child>?; where are the books for children?; from what age can <child> come?;
            which floor is for children?"""),
        choices("my nephew is five. when are stories read to children?; can <child> play on one of the floors?"),
    ),
    "job": (
        "Can I work or help at the library?",
        "Helpers are welcome; write to help@library.example.",
        choices("""
            <can> [work|volunteer|help] [at the library|with you]?; do you [need|look for] [helpers|volunteers|staff]?;
            <want> volunteer; are there any jobs?; do you have a job for me?; <want> work with you;
            do you take interns?"""),
        choices("I am retired and have time to help. do you need volunteers?; is there a job for an intern in summer?"),
    ),
}  # fmt: skip


def questions() -> dict[str, list[dict[str, str]]]:
    """The questions of each file with the id of their answer; none stands twice."""
    dice = Dice(SEED)
    seen = {listed.lower() for listed, *_ in FAQ.values()}
    files: dict[str, list[dict[str, str]]] = {}
    for file, size in SIZES.items():
        is_new = file == "test-new-templates"
        rows: list[dict[str, str]] = []
        while len(rows) < size:
            label = dice.pick([*FAQ])
            wording = dice.pick(FAQ[label][3 if is_new else 2])
            text = dice.pick(FRAMES["new" if is_new else "train"]).replace("{}", wording)
            text = tidy(expand(text, RULES, dice))
            if text.lower() not in seen:
                seen.add(text.lower())
                rows.append({"text": text, "label": label})
        files[file] = rows
    return files


def main() -> None:
    """Write the questions of four files, and the list of answers."""
    parser = argparse.ArgumentParser(description="Write the questions and the list of answers.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    folder = parser.parse_args().out / "faq"
    folder.mkdir(parents=True, exist_ok=True)
    listed = [{"text": text, "label": label, "answer": answer} for label, (text, answer, *_) in FAQ.items()]
    for file, rows in {**questions(), "answers": listed}.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{file}.jsonl").write_text(lines, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
