"""Findings about this machine, and about machines made by putting other distributions on the path."""

import os
from importlib import metadata
from pathlib import Path

import pytest
from conftest import Install
from tiny_pipelines import succeed

from seqpipe.runtime.environment import Finding, examine
from seqpipe.version import VERSION


def finding(what: str) -> Finding:
    return next(found for found in examine() if found.what == what)


def test_this_machine_can_run_bundles() -> None:
    findings = examine()
    assert [found for found in findings if found.state == "error"] == []
    assert {found.state for found in findings} <= {"ok", "note"}
    assert finding("seqpipe").detail.startswith(VERSION)
    assert finding("onnxruntime").detail == f"onnxruntime {metadata.version('onnxruntime')}"
    assert "CPUExecutionProvider" in finding("providers").detail


def test_two_wheels_in_one_folder_are_an_error_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnxruntime", "onnxruntime-gpu"):
        info = tmp_path / f"{name.replace('-', '_')}-9.9.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert finding("onnxruntime").state == "error"
    assert "pip uninstall -y onnxruntime onnxruntime-gpu, then install one" in finding("onnxruntime").detail


def test_threads_of_the_environment_and_the_cores_that_may_be_used_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "OMP_NUM_THREADS=3" in finding("threads").detail
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        detail = finding("threads").detail
    finally:
        os.sched_setaffinity(0, before)
    assert detail.startswith(f"1 of {os.cpu_count()} cores may be used, load ")
    assert ", OMP_WAIT_POLICY=passive" in detail
    assert detail.endswith("; training uses up to 1")


def test_a_broken_plugin_is_noted(install: Install) -> None:
    install("seqpipe-broken", "raise SystemExit('gone')")
    assert finding("plugin") == Finding("note", "plugin", "seqpipe-broken 1.0 is broken: SystemExit: gone")


def test_the_command_prints_a_line_for_each_finding() -> None:
    done = succeed("doctor")
    assert done.out.splitlines()[0].startswith(f"ok    seqpipe: {VERSION}, Python 3.")
    assert len([line for line in done.out.splitlines() if not line.startswith(" ")]) >= len(examine())
