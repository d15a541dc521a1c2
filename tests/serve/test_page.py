"""The page: every answer kind drawn after a real click in Chromium, for keyboards and screen readers too."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from media_bundles import IMAGE, image_file, wav, write_media_bundle
from page_cases import CASES, CHINESE, HEBREW, PICTURE, POINTS, PROMPT, STORY, WAKE, Case, recorded_app
from PIL import Image
from serving import Server, running_app

from seqpipe import Model, load, serve
from seqpipe.answers.registry import ANSWER_KINDS, MultiHead

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page, Route

axe = pytest.importorskip("axe_playwright_python.sync_playwright")
playwright_api = pytest.importorskip("playwright.sync_api")
expect = playwright_api.expect
FILES = Path(serve.__file__).parent / "page"
BY_NAME = {case.name: case for case in CASES}
HARD = 'It\'s "Anna" in New York \\n 你好 $HOME 😀\nBen'  # for shells, for Python, and for offsets
EXAMINED = "entities intent stories parser tour normalization assistant embedding"  # by axe-core
chromium = pytest.mark.chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    path = shutil.which("chromium")
    assert path, "Chromium is not installed: apt install chromium, or leave these tests out with -m 'not chromium'"
    with playwright_api.sync_playwright() as playwright:
        microphone = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]  # which beeps
        running = playwright.chromium.launch(executable_path=path, args=microphone)
        yield running.new_context(permissions=["microphone"])
        running.close()


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    """The bodies that the server of recorded answers got."""
    return []


@pytest.fixture(scope="module")
def url(requests: list[dict[str, Any]]) -> Iterator[str]:
    """A server of recorded answers."""
    with running_app(recorded_app(requests)) as url:
        yield url


@pytest.fixture(scope="module")
def real(
    tiny_bundle: Path, slow_bundle: Path, build: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """`seqpipe serve` with bundles that answer with spans, with tags, and with attention weights."""
    tagger = build(tmp_path_factory.mktemp("toys") / "tagger", kind="tags")
    vision = write_media_bundle(tmp_path_factory.mktemp("vision"), IMAGE, [PICTURE])
    with Server(tiny_bundle, f"tagger={tagger}", f"explained={slow_bundle}", f"vision={vision}") as running:
        yield running


@contextmanager
def checked_page(browser: BrowserContext) -> Iterator[Page]:
    """A page in which nothing fails, and which asks nothing of another server."""
    page, origins, problems = browser.new_page(), set[str](), list[str]()
    page.on("request", lambda request: origins.add("/".join(request.url.split("/")[:3])))
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    page.close()
    assert problems == []
    assert len(origins) == 1


@pytest.fixture
def page(browser: BrowserContext) -> Iterator[Page]:
    with checked_page(browser) as page:
        yield page


@pytest.fixture(scope="module")
def shared_page(browser: BrowserContext) -> Iterator[Page]:
    """The page for tests that each look at a bundle of their own."""
    with checked_page(browser) as page:
        yield page


def show(page: Page, url: str, name: str) -> None:
    """Opens a bundle's view, and waits until its first example is answered."""
    page.goto(f"{url}/#{name}")
    expect(page.get_by_role("heading", name=name, exact=True, level=2)).to_be_visible()
    answered(page)


def answer(page: Page) -> Any:
    """Clicks, and returns the place of the answer once it is there."""
    page.get_by_role("button", name="Answer").click()
    return answered(page)


def answered(page: Page) -> Any:
    expect(page.get_by_text("answered in")).to_be_visible()
    return page.locator(".result[aria-busy=false]")


def pixels(place: Any) -> np.ndarray:
    """A screenshot, (height, width, 3)."""
    return np.asarray(Image.open(io.BytesIO(place.screenshot())).convert("RGB")).astype(int)


def assert_accessible(page: Page) -> None:
    """Labels, roles, order and contrast are right by the rules of axe-core."""
    result = axe.Axe().run(page)
    assert result.violations_count == 0, result.generate_report()


def run_shown_code(page: Page, folder: Path) -> Any:
    """Run the curl command and the Python code that the page shows, in a folder: the answer, which is the same."""
    page.get_by_text("Request", exact=True).click()
    curl = page.get_by_label("curl command", exact=True).inner_text()
    answer = json.loads(subprocess.check_output(["bash", "-c", curl], cwd=folder))
    code = page.get_by_label("Python code", exact=True).inner_text()
    printed = subprocess.check_output([sys.executable, "-c", code], text=True, encoding="utf-8", cwd=folder)
    assert printed == f"{answer}\n"
    return answer


def tint(place: Any) -> tuple[int, ...]:
    """The color that is most frequent in a picture of a place."""
    colors, counts = np.unique(pixels(place).reshape(-1, 3), axis=0, return_counts=True)
    return tuple(colors[counts.argmax()].tolist())


def test_every_answer_kind_states_a_drawing_that_the_page_has() -> None:
    table = re.search(r"const DRAWINGS = {(.*?)}", (FILES / "drawings.js").read_text(encoding="utf-8"), re.S)
    assert table
    known = {*re.findall(r"(\w+):", table[1]), "heads"}
    assert {case.kind.kind for case in CASES} == {*ANSWER_KINDS, MultiHead.kind}
    assert {case.kind.drawing["as"] for case in CASES} == known
    json.dumps([case.kind.drawing for case in CASES])


def test_the_page_names_nothing_elsewhere_and_no_script_stands_in_it() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in FILES.iterdir()}
    assert len(texts) > 10
    addresses = {address for text in texts.values() for address in re.findall(r"\bhttps?://[^\"']*", text)}
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which nobody asks for
    assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=", texts["index.html"])
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert [file for file, text in texts.items() if name in text] == []


def test_the_files_come_with_headers_that_allow_nothing_else(real: Server) -> None:
    for path in ("/", "/page/page.js", "/page/page.css", "/page/icon.svg"):
        reply = real.get(path)
        assert reply.status == 200
        assert reply.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in reply.headers["content-security-policy"]
        again = real.get(path, headers={"If-None-Match": reply.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
    assert real.get("/").headers["content-type"] == "text/html; charset=utf-8"
    assert "javascript" in real.get("/page/page.js").headers["content-type"]
    for path in ("/page/../page.py", "/page/%2e%2e/page.py", "/page/none.js", "/page/"):
        assert real.get(path).status == 404


@chromium
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_answer_is_drawn_after_a_click(shared_page: Page, url: str, requests: list[Any], case: Case) -> None:
    show(shared_page, url, case.name)
    place = answer(shared_page)
    for words in case.shows:
        expect(place).to_contain_text(words)
    alone = len(case.inputs) == 1 and case.inputs[0]["type"] == "text"
    expected = {"inputs": case.example if alone or isinstance(case.example, dict) else {"text": case.example}}
    everything = {name: "all" for name, option in case.options.items() if option["type"] == "ranking"}
    expected |= {"options": everything} if everything else {}
    assert requests.pop() == (expected | {"stream": True} if case.pieces else expected)
    assert len(np.unique(pixels(place).reshape(-1, 3), axis=0)) > 20  # letters and colors, not one background
    assert place.evaluate("place => place.scrollWidth <= place.clientWidth")


@chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_spans_are_colored_where_their_words_stand(page: Page, url: str, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    show(page, url, "entities")
    marks = answer(page).locator("mark").all()
    assert [mark.inner_text() for mark in marks] == ["seven", "Lausanne", "Anna"]
    tints = [tint(mark) for mark in marks]
    background = tint(page.locator(".card").first)
    assert all(max(color) - min(color) > 15 for color in tints)  # no gray
    assert len({*tints, background}) == 4
    assert (min(background) > 200) == (scheme == "light")


@chromium
def test_overlapping_spans_each_have_their_stripe(page: Page, url: str) -> None:
    show(page, url, "nested")
    marks = answer(page).locator("mark").all()
    stripes = [(mark.inner_text(), mark.evaluate("m => m.style.backgroundImage").count("gradient")) for mark in marks]
    assert stripes == [("New York", 2), (" ", 1), ("University", 2), (" Press", 1), ("Bern", 1)]


@chromium
def test_offsets_are_code_points_and_hebrew_runs_from_right_to_left(page: Page, url: str) -> None:
    show(page, url, "chinese")
    assert answer(page).locator("mark").all_inner_texts() == ["明天上午", "安娜", "北京"]
    assert CHINESE[0] == "😀"  # two UTF-16 units before all of them
    show(page, url, "hebrew")
    place = answer(page)
    first, *_, last = [mark.bounding_box()["x"] for mark in place.locator("mark").all()]
    assert first > last
    assert place.locator(".text").evaluate("p => getComputedStyle(p).direction") == "rtl"
    assert place.locator("mark").all_inner_texts() == [span["word"] for span in BY_NAME["hebrew"].answer]
    assert page.get_by_label("text", exact=True).input_value() == HEBREW


@chromium
def test_a_text_appears_while_it_is_generated_and_can_be_stopped(page: Page, url: str) -> None:
    show(page, url, "stories")
    page.evaluate("""() => {
        window.seen = [];
        const look = () => window.seen.push(document.querySelector(".generated")?.textContent);
        new MutationObserver(look).observe(document.querySelector(".result"), {childList: true, subtree: true});
    }""")
    for _ in range(5):  # how many pieces of the stream arrive together is up to the server and the browser
        expect(answer(page).locator("mark.new")).to_have_text(STORY)
        seen = page.evaluate("() => window.seen.splice(0)")
        unfinished = {text for text in seen if text and text != PROMPT + STORY}
        if len(unfinished) >= 2:
            break
    assert len(unfinished) >= 2
    assert all((PROMPT + STORY).startswith(text) for text in unfinished)
    page.get_by_role("button", name="Answer").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("stopped")).to_be_visible()


@chromium
def test_points_are_drawn_where_they_are(page: Page, url: str, requests: list[Any]) -> None:
    show(page, url, "hull")
    page.get_by_label("points", exact=True).fill("0 0\n4, 0\n\n4;2")
    picture = answer(page).get_by_role("img")
    assert requests.pop() == {"inputs": {"points": [[0, 0], [4, 0], [4, 2]]}}
    (x0, y0), (x1, y1), (x2, y2) = picture.locator("circle").evaluate_all(
        "list => list.map(c => [Number(c.getAttribute('cx')), Number(c.getAttribute('cy'))])"
    )
    assert (y0, x1) == (y1, x2)
    assert x1 - x0 == pytest.approx(2 * (y1 - y2))
    show(page, url, "tour")
    picture = answer(page).get_by_role("img", name=f"{len(POINTS)} points and the path through 6 of them")
    assert picture.locator("polyline").evaluate("line => line.points.length") == 7


@chromium
def test_an_explanation_shows_weights_and_copies(page: Page, url: str, requests: list[Any]) -> None:
    show(page, url, "entities")
    page.get_by_role("checkbox", name="Explain").check()
    place = answer(page)
    assert requests.pop()["explain"] is True
    assert place.locator("mark.heat").count() == 9
    diagonal, corner = tint(place.locator("td.heat").nth(0)), tint(place.locator("td.heat").nth(8))
    assert sum(diagonal) < sum(corner)  # the heavier weight is the darker one
    page.get_by_label("Weights", exact=True).select_option("head 2")
    expect(place.locator("td.heat").first).to_have_attribute("title", "Wake → Wake: 0.500")
    show(page, url, "normalization")
    page.get_by_role("checkbox", name="Explain").check()
    row = answer(page).get_by_role("row", name="Zoltán 0.990 Zoltán 12–18")
    assert row.count() == 1


@chromium
def test_options_are_sent_when_they_are_chosen(page: Page, url: str, requests: list[Any]) -> None:
    show(page, url, "normalization")
    page.get_by_text("Decode options (5)").click()
    expect(page.get_by_text("Above 0, default 1.")).to_be_visible()
    expect(page.get_by_label("beams")).to_have_attribute("max", "64")
    page.get_by_label("beams").fill("3")
    page.get_by_label("seed").fill("7")
    page.get_by_label("greedy").check()
    page.get_by_label("stop").fill("at seven")
    answer(page)
    assert requests.pop()["options"] == {"beams": 3, "seed": 7, "greedy": True, "stop": "at seven"}
    page.get_by_label("beams").fill("")
    page.get_by_label("greedy").uncheck()
    assert '"options":{"stop":"at seven","seed":7}' in page.get_by_label("curl command", exact=True).text_content()


@chromium
def test_an_option_is_described_and_takes_all_where_all_may_be_sent(page: Page, url: str, requests: list[Any]) -> None:
    show(page, url, "entities")
    page.get_by_text("Decode options (1)").click()
    expect(page.get_by_label("bias")).to_have_accessible_description("Evidence for O. -20 to 20, default 0.")
    show(page, url, "intent")
    page.get_by_text("Decode options (1)").click()
    field = page.get_by_label("n_best")
    expect(field).to_have_accessible_description(re.compile("^Number of labels.* 1 to 3, or all, all if left empty.$"))
    for written, sent in (("2", 2), ("all", "all"), ("", "all")):
        field.fill(written)
        answer(page)
        assert requests.pop()["options"] == {"n_best": sent}
    field.fill("most")
    page.get_by_role("button", name="Answer").click()
    expect(page.get_by_role("alert")).to_have_text("n_best: write a whole number, or all")
    assert {"n_best": "most"} not in [request.get("options") for request in requests]


@chromium
def test_what_is_refused_is_said_in_words(page: Page, url: str) -> None:
    show(page, url, "entities")
    page.get_by_label("text", exact=True).fill("refuse me")
    page.get_by_role("button", name="Answer").click()
    expect(page.get_by_role("alert")).to_have_text("record 1: the text is refused; write another")
    show(page, url, "tour")
    page.get_by_label("points", exact=True).fill("0 0\n1 one")
    page.get_by_role("button", name="Answer").click()
    expect(page.get_by_role("alert")).to_have_text("points, line 2: 'one' is no number")
    page.route("**/v1/tour", lambda route: route.abort())
    page.get_by_label("points", exact=True).fill("0 0")
    page.get_by_role("button", name="Answer").click()
    expect(page.get_by_role("alert")).to_contain_text("the server cannot be reached")


@chromium
def test_a_server_with_a_token_asks_for_it(page: Page, url: str) -> None:
    def guard(route: Route) -> None:
        if route.request.headers.get("authorization") == "Bearer secret":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": "a bearer token is needed"})

    page.route("**/v1*", guard)
    page.route("**/v1/*", guard)
    page.goto(url)
    expect(page.get_by_role("alert")).to_have_text("a bearer token is needed")
    page.get_by_label("Token").fill("secret")
    page.get_by_role("button", name="Use it").click()
    expect(answer(page)).to_contain_text("Lausanne")
    assert '-H "Authorization: Bearer $TOKEN"' in page.get_by_label("curl command", exact=True).text_content()


@chromium
def test_a_server_without_a_bundle_is_asked_again(page: Page, url: str) -> None:
    page.clock.install()
    page.route("**/v1", lambda route: route.fulfill(json={"bundles": []}), times=1)
    page.goto(url)
    expect(page.get_by_role("alert")).to_contain_text("The server has no bundle yet")
    page.clock.run_for(2000)
    expect(page.get_by_role("heading", name="entities")).to_be_visible()


@chromium
def test_a_keyboard_is_enough(page: Page, url: str) -> None:
    page.goto(f"{url}/#entities")
    expect(page.get_by_role("button", name="Answer")).to_be_visible()
    focused = "document.activeElement.textContent || document.activeElement.labels?.[0]?.textContent"

    def tab_to(name: str) -> list[str]:
        passed: list[str] = []
        while not passed or passed[-1] != name:
            page.keyboard.press("Tab")
            passed.append(page.evaluate(focused))
            assert len(passed) < 60, passed
        return passed

    assert tab_to("nested")[:3] == ["Skip to the form", "entities", "nested"]
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="nested", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="nested")).to_have_attribute("aria-current", "page")
    tab_to("text")
    page.keyboard.press("Control+A")
    page.keyboard.type("New York")
    assert tab_to("Answer")[-2:] != ["Answer"]
    page.keyboard.press("Enter")
    expect(answered(page)).to_contain_text("New York")
    page.keyboard.press("Shift+Tab")
    page.get_by_label("text", exact=True).focus()
    page.keyboard.press("Control+Enter")
    expect(answered(page)).to_contain_text("New York")


@chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")])
@pytest.mark.parametrize("name", EXAMINED.split())
def test_axe_finds_nothing_to_mend(page: Page, url: str, name: str, width: int, scheme: Any) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    show(page, url, name)
    if BY_NAME[name].explanation:
        page.get_by_role("checkbox", name="Explain").check()
    answer(page)
    page.locator("details").evaluate_all("list => list.forEach(part => { part.open = true; })")
    assert_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width


@chromium
def test_the_first_example_is_answered_before_anybody_asks(page: Page, url: str, requests: list[Any]) -> None:
    requests.clear()
    show(page, url, "entities")
    expect(page.locator(".result mark").first).to_have_text("seven")
    assert requests == [{"inputs": WAKE}]
    # An overloaded server is not reported for what nobody asked; and a large bundle is not asked.
    page.route("**/v1/nested", lambda route: route.fulfill(status=503, json={"error": "overloaded"}))
    page.get_by_role("link", name="nested").click()
    expect(page.locator(".result[aria-busy=false]")).to_have_text("The answer appears here.")
    page.get_by_role("button", name="Answer").click()
    expect(page.get_by_role("alert")).to_have_text("overloaded")
    large = [BY_NAME["hebrew"].description | {"bytes": 2**30}]
    page.route("**/v1", lambda route: route.fulfill(json={"bundles": large}))
    requests.clear()
    page.goto(f"{url}/?large#hebrew")
    expect(page.locator(".result")).to_have_text("The answer appears here.")
    page.wait_for_timeout(200)
    assert requests == []


@chromium
def test_an_empty_text_is_refused_in_words_and_not_sent(page: Page, url: str, requests: list[Any]) -> None:
    for name, text in (("entities", ""), ("normalization", " \n"), ("tour", ""), ("reading", "")):
        show(page, url, name)
        for field in BY_NAME[name].inputs:
            page.get_by_label(field["name"], exact=True).fill(text)
        if BY_NAME[name].explanation:
            page.get_by_role("checkbox", name="Explain").check()
        requests.clear()
        page.get_by_role("button", name="Answer").click()
        expect(page.get_by_role("alert")).to_contain_text(re.compile("^There is nothing to answer: .* is empty. Write"))
        assert requests == []
    show(page, url, "stories")  # a model that begins a text by itself
    page.get_by_label("text", exact=True).fill("")
    answer(page)
    assert requests.pop() == {"inputs": "", "stream": True}


@chromium
def test_nothing_is_said_of_attention_weights_where_no_token_was_read(page: Page, url: str) -> None:
    explanation = {"text": "\u200b", "answer": [], "attentions": {}}
    show(page, url, "entities")
    page.route("**/v1/entities", lambda route: route.fulfill(json={"answer": [], "explanation": explanation}))
    page.get_by_label("text", exact=True).fill("?")
    page.get_by_role("checkbox", name="Explain").check()
    expect(answer(page)).to_contain_text("This text has no tokens")


@chromium
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("over", ["pairs", "written"])
def test_a_wide_heat_map_scrolls_inside_its_card(page: Page, url: str, width: int, over: str) -> None:
    text = " ".join(["word", " "] * 40)
    at = [[i, i + 1] for i in range(80)]  # blanks are tokens too
    weights = [[1 / 80] * 80] * 80
    attention = {"over": over, "places": at, "weights": [weights, weights] if over == "pairs" else weights}
    written = {"written": [*text[:80]]} if over == "written" else {}
    explanation = {"text": text, "answer": [], "attentions": {"a": attention | written}}
    page.set_viewport_size({"width": width, "height": 800})
    show(page, url, "entities")
    page.route("**/v1/entities", lambda route: route.fulfill(json={"answer": [], "explanation": explanation}))
    page.get_by_role("checkbox", name="Explain").check()
    place = answer(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert place.locator(".scrolls").evaluate("map => map.scrollWidth > map.clientWidth")
    assert place.locator("thead th").all_inner_texts()[:6] == ["w", "o", "r", "d", "␣", "␣"]
    assert place.locator("tbody th").all_inner_texts()[3:5] == ["d", "␣"]
    assert place.locator("thead .turned").count() == 0


@chromium
def test_all_labels_are_bars_and_the_many_behind_a_summary(page: Page, url: str) -> None:
    show(page, url, "intent")
    names = page.locator(".result .bars .name")
    assert names.all_inner_texts() == ["alarm", "weather", "music"]
    many = [{"label": f"label {i}", "score": (25 - i) / 300} for i in range(25)]
    page.route("**/v1/intent", lambda route: route.fulfill(json={"answer": many}))
    answer(page)
    assert sum(name.is_visible() for name in names.all()) == 10
    page.get_by_text("15 more labels").click()
    assert [name.inner_text() for name in names.all()] == [label["label"] for label in many]


@chromium
def test_a_phone_shows_the_answer_before_the_request_and_scrolls_to_it(page: Page, url: str) -> None:
    page.set_viewport_size({"width": 390, "height": 700})
    show(page, url, "normalization")
    expect(page.locator(".keys")).to_be_hidden()
    expect(page.locator("#menu")).to_be_visible()
    expect(page.get_by_label("curl command", exact=True)).to_be_hidden()
    assert page.locator(".result").bounding_box()["y"] < page.get_by_text("Request", exact=True).bounding_box()["y"]
    page.get_by_text("Decode options").click()
    page.evaluate("window.scrollTo(0, 0)")
    answer(page)
    expect(page.locator(".result")).to_be_in_viewport(ratio=0.5)
    page.set_viewport_size({"width": 1280, "height": 800})
    expect(page.locator(".keys")).to_be_visible()


@chromium
def test_seqpipe_serve_answers_on_the_page_and_to_its_code(
    page: Page, real: Server, tiny: Model, tmp_path: Path
) -> None:
    show(page, real.url, "toy")
    page.get_by_label("text", exact=True).fill(HARD)
    expected = tiny(HARD)
    words = [span["word"] for span in expected]
    assert words == ["It", "Anna", "New York", "HOME", "Ben"]
    place = answer(page)
    assert place.locator("mark").all_inner_texts() == words
    assert run_shown_code(page, tmp_path) == {"answer": expected}
    page.get_by_role("link", name="tagger").click()
    expect(page.get_by_role("heading", name="tagger", exact=True)).to_be_visible()
    page.get_by_label("text", exact=True).fill("Anna meets Ben")
    expect(answer(page).get_by_role("listitem")).to_have_text(["AnnaB-person", "meetsO", "BenB-person"])


# Pictures and sounds


def choose(page: Page, field: str, name: str, content: bytes) -> None:
    page.get_by_label(field, exact=True).set_input_files({"name": name, "mimeType": "", "buffer": content})
    expect(page.locator("form [role=status]")).to_contain_text(name)


def sent(requests: list[Any], field: str) -> bytes:
    return base64.b64decode(requests.pop()["inputs"][field])


@chromium
def test_a_picture_is_chosen_or_dropped_and_sent(page: Page, url: str, requests: list[Any]) -> None:
    show(page, url, "digit")
    expect(page.locator("img.picture")).to_have_js_property("naturalWidth", 8)
    noise = np.random.default_rng(1).integers(0, 256, (900, 1200, 3))
    whole, webp = image_file(noise[:6, :5]), image_file(noise[:60, :50], "WEBP")
    large = image_file(noise, compress_level=0)
    choose(page, "image", "small.png", whole)
    answer(page)
    assert sent(requests, "image") == whole
    for name, content, size in (("a.webp", webp, (50, 60)), ("large.png", large, (1000, 750))):
        choose(page, "image", name, content)
        answer(page)
        picture = Image.open(io.BytesIO(sent(requests, "image")))
        assert (picture.format, picture.size) == ("PNG", size)
    choose(page, "image", "notes.txt", b"no picture")
    expect(page.locator("form [role=status]")).to_contain_text("not a picture that this browser can show")
    requests.clear()
    page.get_by_role("button", name="Answer").click()
    expect(page.get_by_role("alert")).to_contain_text("There is nothing to answer: choose a file for “image”.")
    assert requests == []
    page.evaluate(
        """bytes => {
            const files = new DataTransfer();
            files.items.add(new File([new Uint8Array(bytes)], "dropped.png"));
            const field = document.querySelector("input[type=file]").parentElement;
            field.dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }));
        }""",
        [*whole],
    )
    expect(page.locator("form [role=status]")).to_contain_text("dropped.png")
    answer(page)
    assert sent(requests, "image") == whole


@chromium
def test_a_sound_is_chosen_or_recorded_as_pcm(page: Page, url: str, requests: list[Any]) -> None:
    show(page, url, "spoken")
    expect(page.locator("audio")).to_have_count(1)
    tone = np.sin(np.arange(24_000) / 9) / 2
    choose(page, "audio", "tone.wav", wav(tone, rate=8_000))
    answer(page)
    assert sent(requests, "audio") == wav(tone, rate=8_000)
    choose(page, "audio", "long.wav", wav(np.tile(tone, 64), rate=48_000))  # 3.1 MB, 32 seconds
    answer(page)
    with wave.open(io.BytesIO(sent(requests, "audio"))) as file:
        assert (file.getframerate(), file.getnframes()) == (16_000, 512_000)
    page.get_by_role("button", name="Record").click()
    expect(page.locator("form [role=status]")).to_have_text("Recording …")
    page.wait_for_timeout(2_500)  # the device beeps once a second, and a busy machine loses samples
    page.get_by_role("button", name="Stop recording").click()
    expect(page.locator("form [role=status]")).to_contain_text(re.compile(r"^recording, [1-9]\.\d seconds$"))
    answer(page)
    with wave.open(io.BytesIO(sent(requests, "audio"))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16_000, 1, 2)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert len(samples) > 12_000
    assert np.abs(samples.astype(int)).max() > 1_000


@chromium
def test_attention_is_drawn_on_the_places_of_a_picture(page: Page, url: str) -> None:
    show(page, url, "caption")
    page.get_by_role("checkbox", name="Explain").check()
    maps = answer(page).locator("figure")
    assert maps.locator("figcaption").all_inner_texts() == ["a", "seven"]
    cells = maps.nth(0).locator("rect")
    places = cells.evaluate_all("cells => cells.map(c => [c.x.baseVal.value, c.y.baseVal.value, c.style.cssText])")
    assert max(places, key=lambda cell: float(cell[2].split(":")[1].strip("; "))) == [32, 16, "--weight: 1;"]
    assert_accessible(page)
    show(page, url, "spoken")
    assert_accessible(page)


@chromium
def test_a_picture_is_sent_by_curl_and_python_from_its_file(page: Page, real: Server, tmp_path: Path) -> None:
    show(page, real.url, "vision")
    whole = image_file(np.random.default_rng(2).integers(0, 256, (30, 40, 3)))
    (tmp_path / "it's.png").write_bytes(whole)
    choose(page, "it", "it's.png", whole)
    answer(page)
    expected = real.post("/v1/vision", {"inputs": base64.b64encode(whole).decode()}).json
    assert run_shown_code(page, tmp_path) == expected


@chromium
def test_seqpipe_serve_explains_on_the_page(page: Page, real: Server) -> None:
    show(page, real.url, "explained")
    page.get_by_label("text", exact=True).fill("Anna meets Ben")
    page.get_by_label("Read the text as a document").check()
    page.get_by_role("checkbox", name="Explain").check()
    expect(page.get_by_label("Read the text as a document")).not_to_be_checked()  # the server takes one of the two
    assert answer(page).locator("mark.heat").all_inner_texts() == ["Anna", "meets", "Ben"]


@chromium
@pytest.mark.long
def test_seqpipe_serve_writes_on_the_page(page: Page, writer_bundle: Path) -> None:
    with Server(f"writer={writer_bundle}") as server:
        show(page, server.url, "writer")
        prompt = page.get_by_label("text", exact=True).input_value()
        expect(page.get_by_label("Show the text as it is generated")).to_be_checked()
        written = load(writer_bundle, "cpu", threads=1)(prompt)["generated_text"]
        assert answer(page).locator(".generated").text_content() == written
