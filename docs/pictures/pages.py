"""Take pictures of the server's page, of `seqpipe explain` and of a report in Chromium, for the documentation.

    python docs/pictures/pages.py                    all; trains what they need: 4 minutes of one core
    python docs/pictures/pages.py --folder FOLDER    in a folder that keeps the runs for the next time

Each picture is `docs/pictures/NAME.webp`.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ("playground", "explanation", "report")
PORT = 8765
SEQPIPE = (sys.executable, "-m", "seqpipe")


def draw(name: str, tab: Page) -> None:
    """Write what the tab shows, without loss."""
    picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    picture.save(ROOT / "docs" / "pictures" / f"{name}.webp", lossless=True, quality=100, method=6)
    print(f"docs/pictures/{name}.webp")


def playground(tab: Page, folder: Path) -> None:
    """Answer a request on the server's page with a tagger and a classifier."""
    bundles = ("entities=runs/ner/bundle", "intents=runs/intent-lstm/bundle")
    with subprocess.Popen(
        [*SEQPIPE, "serve", *bundles, "--port", str(PORT)], cwd=folder, stderr=subprocess.PIPE
    ) as server:
        try:
            assert server.stderr is not None
            while b"ready: " not in (line := server.stderr.readline()):
                if not line:
                    raise SystemExit("the server ended before it was ready")
            tab.set_viewport_size({"width": 1200, "height": 600})
            tab.goto(f"http://127.0.0.1:{PORT}/#entities")
            tab.get_by_label("text", exact=True).fill("Wake me at seven in Lausanne")
            tab.get_by_role("button", name="Answer").click()
            tab.get_by_text("answered in").wait_for()
            draw("playground", tab)
        finally:
            server.terminate()


def explanation(tab: Page, folder: Path) -> None:
    """Explain a date, whose letters and blanks are tokens."""
    subprocess.run(
        [*SEQPIPE, "export", "runs/dates", "-o", "explained", "--set", "export.explain=true", "--quiet"],
        cwd=folder,
        check=True,
    )
    subprocess.run(
        [*SEQPIPE, "explain", "explained", "May 3, 1999", "-o", "page.html", "--quiet"], cwd=folder, check=True
    )
    tab.set_viewport_size({"width": 1000, "height": 740})
    tab.goto((folder / "page.html").as_uri())
    draw("explanation", tab)


def report(tab: Page, folder: Path) -> None:
    """Show the scores and the curves of a classifier."""
    subprocess.run([*SEQPIPE, "report", "runs/intent-lstm", "-o", "report.html", "--quiet"], cwd=folder, check=True)
    tab.set_viewport_size({"width": 1120, "height": 1290})
    tab.goto((folder / "report.html").as_uri())
    draw("report", tab)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the commands are run; the runs stay there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="seqpipe-pictures-") as parent, sync_playwright() as playwright:
        folder = (arguments.folder or Path(parent)).resolve()
        shutil.copytree(ROOT / "pipelines", folder / "pipelines", dirs_exist_ok=True)
        shutil.rmtree(folder / "explained", ignore_errors=True)
        for pipeline in ("ner", "intent-lstm", "dates"):
            if not (folder / "runs" / pipeline / "bundle").exists():
                command = [*SEQPIPE, "run", f"pipelines/{pipeline}.yaml", "--quiet"]
                subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        tab = browser.new_page(device_scale_factor=1.5)
        playground(tab, folder)
        explanation(tab, folder)
        report(tab, folder)
        browser.close()


if __name__ == "__main__":
    main()
