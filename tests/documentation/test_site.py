"""README and the site: what a visitor sees first, finds by searching, and can read on any screen."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from doc_pages import ROOT
from repository_scripts import load_script
from site_search import SiteSearch

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.nightly("docs/*", "README.md", "mkdocs.yml", "tests/documentation/*")

DOCS = ROOT / "docs"
MOST_LINES, MOST_WORDS, MOST_PAGES, LEAST_PICTURES = 175, 950, 74, 25
# What people type, and the page that the search must show first.
QUERIES = {
    "internals/bundle-format": "bundle format",
    "coming-from": "spacy, huggingface, flair",
    "course/attention": "attention from scratch, Bahdanau attention",
    "course/classification": "deep averaging network",
    "course/copying": "pointer generator from scratch",
    "course/evaluation": "evaluation from scratch",
    "course/gpt": "KV cache",
    "course/gru": "GRU from scratch, stacked RNN",
    "course/images-and-speech": "convolution from scratch, spectrogram",
    "course/lstm": "LSTM from scratch, LSTM equations",
    "course/pretraining": "negative sampling",
    "course/rnn": "course, Elman",
    "course/seq2seq": "teacher forcing",
    "course/tagging": "CRF from scratch",
    "course/transformer": "Transformer from scratch",
    "course/vanishing-gradients": "vanishing gradient, BPTT",
    "data/faults": "encoding error, duplicates",
    "data/formats": "CSV, data format, label studio",
    "data/models": "how much data, glove",
    "deploy/batch": "spark, ray, dask",
    "deploy/operation": "latency, prometheus",
    "deploy/platforms": "docker, kubernetes, triton",
    "deploy/python": "GPU, thread safety, javascript, onnxruntime, export to ONNX",
    "deploy/recipes": "fastapi, flask, pandas, celery",
    "deploy/serve": "REST API, playground, openai",
    "faq": "overfitting, FAQ, troubleshooting",
    "getting-started": "install, quickstart",
    "plugins/head": "custom loss",
    "plugins/tutorial": "custom layer",
    "python": "notebook, python api",
    "reference/commands": "command line",
    "reference/yaml": "config",
    "scale/size": "large data, scaling, cost of a million texts",
    "tasks/chinese": "chinese",
    "tasks/encoders": "tokenizer, attention, long memory",
    "tasks/entities": "named entity recognition, NER, CRF",
    "tasks/evaluating": "metrics, error analysis, explainability, heatmap, confusion matrix, learning curve",
    "tasks/images": "image classification, image captioning",
    "tasks/labels": "confidence, sentiment analysis, threshold, multi-label, class weights, regression, "
    "intent detection, calibration, tf-idf",
    "tasks/few-labels": "few-shot, SetFit, self-training",
    "tasks/language-models": "GPT, sampling",
    "tasks/long-runs": "cross validation, early stopping, batch size, learning rate, continue training, "
    "mixed precision, resume, reproducibility",
    "tasks/predicting": "quantize, inference",
    "tasks/pretrained": "fine-tune, fine-tune BERT, BERT",
    "tasks/languages": "multilingual, cross-lingual transfer",
    "tasks/pretraining": "word2vec, masked language model",
    "tasks/reading": "question answering",
    "tasks/responsible-use": "bias, fairness, privacy, model card",
    "tasks/retrieval": "chatbot, sentence embeddings, semantic search",
    "tasks/several-heads": "multi-task",
    "tasks/tags": "part of speech",
    "tasks/translation": "translation",
    "tasks/writing": "beam search, summarization, seq2seq",
}
MOST_MISSED = 3
# What seqpipe does not have: the FAQ says so.
LACKING = ["hyperparameter", "multi-gpu", "tensorboard", "LoRA", "LLM", "wandb", "RAG"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning is an error."""
    for package in ("mkdocs", "material", "latex2mathml"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement
    process = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return folder


@pytest.fixture(scope="module")
def search(site: Path) -> SiteSearch:
    return SiteSearch(site)


# README and the number of pages


def test_the_readme_fits_on_a_few_screens() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert len(text.split()) <= MOST_WORDS
    assert re.findall(r"^## (Install|Use it when.*)$", text, re.MULTILINE)[0] == "Install"
    assert f"all {len([*(ROOT / 'pipelines').glob('*.yaml')])} pipelines" in text
    pages = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert len(pages) > 20
    assert [page for page in pages if not (ROOT / page).exists()] == []


def test_there_are_few_pages_and_each_has_a_place_in_the_navigation() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    components = {page for page in pages if page.startswith("reference/components/")}
    assert len(components) > 70
    assert {f"docs/{page}" for page in components} <= load_script(DOCS / "generate.py").PAGES.keys(), (
        "delete the others"
    )
    assert len(pages - components) <= MOST_PAGES
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert sorted(re.findall(r": ([\w/-]+\.md)$", navigation, re.MULTILINE)) == sorted(pages)
    assert len(re.findall(r"^  - ", navigation, re.MULTILINE)) == 8


def test_every_picture_is_drawn_by_a_script_and_shown_by_a_page() -> None:
    pytest.importorskip("playwright")
    by_terminal = {f"{name}.svg" for name in load_script(DOCS / "pictures" / "terminal.py").PICTURES}
    in_chromium = {f"{name}.webp" for name in load_script(DOCS / "pictures" / "pages.py").PICTURES}
    drawn = {path.name for ending in ("svg", "webp", "png") for path in DOCS.rglob(f"*.{ending}")} - {"icon.svg"}
    of_course = {f"{name}.svg" for name in load_script(ROOT / "benchmarks" / "course.py").PICTURES}
    by_others = {"gradients.svg", "speed.svg", "rooms.svg", *of_course}
    assert drawn - by_terminal - in_chromium <= by_others
    assert of_course <= drawn, "run: python benchmarks/course.py pictures"
    assert by_terminal <= drawn, "run: python docs/pictures/terminal.py"
    assert in_chromium <= drawn, "run: python docs/pictures/pages.py"
    assert len(drawn) >= LEAST_PICTURES
    texts = [path.read_text(encoding="utf-8") for path in (*DOCS.rglob("*.md"), ROOT / "README.md")]
    shown = {Path(target).name for text in texts for target in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)}
    assert shown == drawn
    for path in DOCS.rglob("*.svg"):
        assert not re.search(r"(?:href|src|url)\W+https?:", path.read_text(encoding="utf-8")), path


# Search


def test_what_people_type_finds_its_page_first(search: SiteSearch) -> None:
    expected = {query: f"{page}.html" for page, queries in QUERIES.items() for query in queries.split(", ")}
    assert len(expected) >= 60
    first = {query: next(iter(search.pages(query)), None) for query in expected}
    missed = {query: page for query, page in first.items() if page != expected[query]}
    assert len(missed) <= MOST_MISSED, f"add words to docs/synonyms.yml: {missed}"


@pytest.mark.parametrize("query", LACKING)
def test_what_seqpipe_does_not_have_is_said_by_the_faq(search: SiteSearch, query: str) -> None:
    assert search.pages(query)[0] == "faq.html"


def test_a_synonym_of_a_section_that_does_not_exist_is_an_error(site: Path, tmp_path: Path) -> None:
    hooks = load_script(DOCS / "hooks.py")
    shutil.copytree(site / "search", tmp_path / "site" / "search")
    (tmp_path / "synonyms.yml").write_text("faq.md#nowhere: [words]\n", encoding="utf-8")
    with pytest.raises(hooks.PluginError, match=r"faq\.md#nowhere: there is no such page or section"):
        hooks.on_post_build({"site_dir": tmp_path / "site", "docs_dir": tmp_path})


# The site


def test_formulas_become_mathml_and_code_stays_as_it_is() -> None:
    for package in ("latex2mathml", "mkdocs"):
        pytest.importorskip(package)
    hooks = load_script(DOCS / "hooks.py")
    page = "The $`x_t`$ of\n\n```math\n\\frac{1}{2}\n```\n\n```sh\necho '$`x`$'\n```\n\n~~~text\n```math\n~~~\n"
    made = hooks.with_formulas(page)
    assert made.count("<math") == 2
    assert hooks.with_formulas("$`x`$ begins a line").startswith("<span><math")
    assert "</mfrac>" in made
    assert "echo '$`x`$'\n" in made
    assert "~~~text\n```math\n~~~" in made


def test_each_page_of_the_course_has_a_link_to_its_notebook(site: Path) -> None:
    pages = [path.stem for path in DOCS.glob("course/*.md")]
    assert len(pages) > 3
    for page in pages:
        text = (site / "course" / f"{page}.html").read_text(encoding="utf-8")
        links = re.findall(r'<a href="([^"]+)" download>Notebook</a>', text)
        assert links == [f"{page}.ipynb"]
        assert json.loads((site / "course" / links[0]).read_text(encoding="utf-8"))["nbformat"] == 4


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    sources = r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\W?https?:"
    loaded = sources + r"|<link\b[^>]*rel=\W?(?:stylesheet|preconnect|icon)[^>]*https?:"
    pages = [*site.rglob("*.html")]
    assert len(pages) > 40
    assert [page.name for page in pages if re.search(loaded, page.read_text(encoding="utf-8"))] == []


def test_the_yaml_reference_lists_the_components(site: Path) -> None:
    page = (site / "reference" / "yaml.html").read_text(encoding="utf-8")
    contents = page[page.index('data-md-component="toc"') :]
    for anchor in ("components", "readers", "tokenizers", "embeddings", "encoders", "heads"):
        assert f'href="#{anchor}" class="md-nav__link"' in contents
    text = page[page.index('id="components"') :]
    for path in DOCS.glob("reference/components/*/*.md"):
        assert f'href="components/{path.parent.name}/{path.stem}.html"' in text


def test_a_component_is_found_by_its_name_and_kind(search: SiteSearch) -> None:
    for path in DOCS.glob("reference/components/*/*.md"):
        page = path.relative_to(DOCS).with_suffix(".html").as_posix()
        assert page in search.pages(f"{path.parent.name.removesuffix('s')} {path.stem}")[:5]


def test_the_logo_is_that_of_the_server() -> None:
    logo = (ROOT / "seqpipe" / "serve" / "page" / "icon.svg").read_bytes()
    assert (DOCS / "assets" / "icon.svg").read_bytes() == logo


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    path = shutil.which("chromium")
    assert path, "Chromium is not installed: apt install chromium, or leave these tests out with -m 'not chromium'"
    with (
        sync_playwright() as playwright,
        contextlib.closing(playwright.chromium.launch(executable_path=path)) as running,
    ):
        yield running


@pytest.mark.chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize("page", ["index", "course/lstm", "tasks/encoders", "tasks/entities", "deploy/recipes"])
def test_a_page_is_accessible_and_needs_no_scrolling_to_the_side(
    browser: Browser, url: str, page: str, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    with contextlib.closing(context):
        tab = context.new_page()
        tab.goto(f"{url}/{page}.html")
        tab.wait_for_function("document.querySelector('.md-search').ariaLabel === 'Search'")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        report = pytest.importorskip("axe_playwright_python.sync_playwright").Axe().run(tab)
        assert report.violations_count == 0, report.generate_report()


@pytest.mark.chromium
def test_the_search_of_the_browser_agrees_with_ours(browser: Browser, url: str, search: SiteSearch) -> None:
    with contextlib.closing(browser.new_context()) as context:
        tab = context.new_page()
        for query in ("early stopping", "fine-tune BERT", "multi-gpu", "confidence"):
            tab.goto(f"{url}/index.html?q={query}")
            tab.wait_for_selector(".md-search-result__item a", state="attached")
            first = tab.locator(".md-search-result__item a").first.get_attribute("href")
            assert first is not None
            assert search.pages(query)[0] in first.partition("#")[0]
