"""The script for a GPU goes through all of its steps on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from documents import ROOT


def run(folder: Path, *arguments: object) -> tuple[int, dict[str, dict[str, object]]]:
    script = [sys.executable, str(ROOT / "benchmarks" / "cuda.py")]
    options = ["--texts", "9", "--out", str(folder / "cuda.json")]
    done = subprocess.run([*script, *map(str, arguments), *options], cwd=folder, capture_output=True, check=False)
    return done.returncode, json.loads((folder / "cuda.json").read_text(encoding="utf-8"))["bundles"]


def test_a_dry_run_on_the_cpu_goes_on_behind_a_bundle_that_fails(
    tiny_bundle: Path, slow_bundle: Path, tmp_path: Path
) -> None:
    code, results = run(tmp_path, tiny_bundle, slow_bundle, "--device", "cpu")
    assert code == 0
    for result in results.values():
        assert (result["device"], result["golden_wrong"], result["answers"]) == ("cpu", [], 9)
        assert result["answers_differ"] == result["nodes_on_cpu_within_loops"] == 0
    assert list(results[str(tiny_bundle)]["placement"]) == ["CPU"]  # type: ignore[call-overload]
    assert "CPU within loops" in results[str(slow_bundle)]["placement"]  # type: ignore[operator]
    code, results = run(tmp_path, tmp_path, tiny_bundle, "--device", "cpu")
    assert code == 1
    assert str(results[str(tmp_path)]["error"]).startswith("BundleError: ")
    assert results[str(tiny_bundle)]["answers_differ"] == 0
