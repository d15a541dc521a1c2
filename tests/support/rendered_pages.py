"""Pages in headless Chromium, at the widths of a desktop and a phone, in the light and in the dark."""

import contextlib
import html
import itertools
import re
import shutil
from pathlib import Path

import pytest


def page_faults(path: Path) -> list[str]:
    """The faults of a page: messages of its console, requests, scrolling to the side, violations by axe."""
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    faults: list[str] = []
    with (
        sync_playwright() as playwright,
        contextlib.closing(playwright.chromium.launch(executable_path=shutil.which("chromium"))) as browser,
    ):
        for width, scheme in itertools.product((1280, 390), ("light", "dark")):
            tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            tab.on("console", lambda message: faults.append(message.text))
            tab.on("pageerror", lambda error: faults.append(str(error)))
            tab.on("request", lambda request: faults.append(request.url) if request.url != path.as_uri() else None)
            tab.goto(path.as_uri())
            tab.locator("details").evaluate_all("list => list.forEach(part => { part.open = true; })")
            if (needed := tab.evaluate("document.documentElement.scrollWidth")) != width:
                faults.append(f"{needed} pixels wide, at a width of {width}")
            report = axe.run(tab)
            if report.violations_count:
                faults.append(report.generate_report())
            tab.close()
    return faults


def table_rows(page: str) -> list[list[str]]:
    """The rows of all tables of a page as texts of cells."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", page, re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[html.unescape(cell.strip()) for cell in row] for row in cells]
