"""Findings about this machine, and about machines made by putting other distributions on the path."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from conftest import Install

from seqpipe.runtime.environment import Finding, examine
from seqpipe.version import VERSION


def finding(what: str) -> Finding:
    return next(found for found in examine() if found.what == what)


def wheel(folder: Path, name: str, version: str = "9.9") -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_this_machine_can_run_bundles() -> None:
    findings = examine()
    assert [found for found in findings if found.state == "error"] == []
    assert {found.state for found in findings} <= {"ok", "note"}
    assert finding("seqpipe").detail.startswith(VERSION)
    assert finding("onnxruntime").detail == f"onnxruntime {metadata.version('onnxruntime')}"
    assert "CPUExecutionProvider" in finding("providers").detail


def test_two_wheels_in_one_folder_are_an_error_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnxruntime", "onnxruntime-gpu"):
        wheel(tmp_path, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = finding("onnxruntime")
    assert found.state == "error"
    assert "pip uninstall -y onnxruntime onnxruntime-gpu, then install one" in found.detail


def test_threads_set_in_the_environment_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "OMP_NUM_THREADS=3" in finding("threads").detail


def test_the_cores_that_may_be_used_and_how_threads_wait_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        found = finding("threads")
    finally:
        os.sched_setaffinity(0, before)
    assert found.detail.startswith(f"1 of {os.cpu_count()} cores may be used, load ")
    assert ", OMP_WAIT_POLICY=passive" in found.detail
    assert found.detail.endswith("; training uses up to 1")


def test_a_broken_plugin_is_noted(install: Install) -> None:
    install("seqpipe-broken", "raise SystemExit('gone')")
    assert finding("plugin") == Finding("note", "plugin", "seqpipe-broken 1.0 is broken: SystemExit: gone")


def test_the_command_prints_a_line_a_finding() -> None:
    code = "from seqpipe.commands.app import main; import sys; sys.argv = ['seqpipe', 'doctor']; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith(f"ok    seqpipe: {VERSION}, Python 3.")
