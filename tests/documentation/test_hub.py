"""The lines of docs/deploy/recipes.md publish a bundle on the model hub and load it again, from a server like it."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import doc_pages
import pytest
from gallery import gallery
from huggingface_hub import ModelCard

from seqpipe import load

pytestmark = pytest.mark.nightly("docs/deploy/recipes.md", "seqpipe/export/exporter.py", "tests/documentation/*")


class Hub(BaseHTTPRequestHandler):
    """The part of the model hub's interface by which a folder is published and fetched, of one repository."""

    files: ClassVar[dict[str, bytes]] = {}
    requests: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append(f"{self.path} {self.headers['Authorization']}")
        if self.path.endswith("/create"):
            return self.respond({"url": f"http://{self.headers['Host']}/ada/intent"})
        if self.path.endswith("/validate-yaml"):  # the hub's own check of a card is stricter than its client's
            card = ModelCard(json.loads(body)["content"])
            assert card.data.eval_results
            return self.respond({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self.respond({"files": files})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        url = f"http://{self.headers['Host']}/ada/intent/commit/{'0' * 40}"
        self.respond({"success": True, "commitOid": "0" * 40, "commitUrl": url, "hookOutput": ""})

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in self.files.items()
            ]
            return self.respond(entries)
        if self.path.startswith("/api/"):
            siblings = [{"rfilename": name} for name in self.files]
            return self.respond({"id": "ada/intent", "sha": "0" * 40, "siblings": siblings})
        data = self.files[self.path.rpartition("/")[2]]
        self.respond(data, **{"X-Repo-Commit": "0" * 40, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'})

    def do_HEAD(self) -> None:
        self.do_GET()

    def respond(self, content: object, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(200)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


def test_the_lines_of_the_page_publish_a_bundle_and_load_it_again(tmp_path: Path) -> None:
    page = (doc_pages.ROOT / "docs/deploy/recipes.md").read_text(encoding="utf-8")
    lines = [block.code for block in doc_pages.code_blocks(page) if "huggingface_hub" in block.code]
    assert len(lines) == 2
    folder = Path(shutil.copytree(gallery("label").bundle, tmp_path / "runs/intent-lstm/bundle"))
    (folder / "README.md").write_text((folder / "README.md").read_text() + "\nIt is for tests.\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        variables = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0"}
        variables |= {"HF_TOKEN": "hf_test", "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        command = [sys.executable, "-c", "\n".join(lines)]
        result = subprocess.run(command, cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True)
        server.shutdown()
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() in load(folder, "cpu").labels
    assert [line.partition(" ")[0] for line in Hub.requests][-1].endswith("/commit/main")
    assert all(line.endswith("Bearer hf_test") for line in Hub.requests)
    fetched = tmp_path / "intent"
    assert all((fetched / path.name).read_bytes() == path.read_bytes() for path in folder.iterdir())
    assert load(fetched, "cpu").verify() == []
