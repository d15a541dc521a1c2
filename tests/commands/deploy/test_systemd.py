"""`seqpipe deploy systemd`: systemd takes the unit, which lets the server do little."""

from __future__ import annotations

import re
import shlex
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest
from deployed import check_serve, deploy
from factory import seqpipe

UNIT = "seqpipe-toy.service"


def unit(path: Path) -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string(path.read_text())
    return parser


def verify(path: Path) -> str:
    """What systemd has against a unit."""
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.fixture
def written(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A unit whose command is there, as systemd looks for it."""
    deploy("systemd", tiny_bundle, tmp_path / "systemd", "--command", "/usr/bin/env")
    return tmp_path / "systemd" / UNIT


@pytest.mark.systemd
@pytest.mark.parametrize("cuda", [False, True])
def test_systemd_takes_the_unit(cuda: bool, tiny_bundle: Path, tmp_path: Path) -> None:
    deploy("systemd", tiny_bundle, tmp_path / "a", "--command", "/usr/bin/env", *(["--cuda"] if cuda else []))
    assert verify(tmp_path / "a" / UNIT) == ""


@pytest.mark.systemd
def test_systemd_would_find_faults(written: Path) -> None:
    text = written.read_text()
    for old, new, message in (
        ("Type=notify", "Type=notifier", "notifier"),
        ("/usr/bin/env", "/usr/bin/no-such-command", "not executable"),
        ("ProtectClock", "ProtectClocks", "'ProtectClocks'"),
    ):
        assert old in text
        written.write_text(text.replace(old, new))
        assert message in verify(written)


@pytest.mark.systemd
def test_little_is_exposed(written: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", written]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    level = re.search(r"Overall exposure level for \S+: (\d+\.\d)", done.stdout)
    assert level is not None
    assert float(level[1]) < 2


def test_the_unit_serves_the_bundle_where_it_is_to_be(tiny_bundle: Path, tmp_path: Path) -> None:
    options = ("--place", "/srv/models/people", "--port", "9001", "--name", "people")
    said = deploy("systemd", tiny_bundle, tmp_path / "systemd", *options)
    service = unit(tmp_path / "systemd" / "seqpipe-people.service")["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program == "/opt/seqpipe/bin/seqpipe"
    parameters = check_serve(arguments)
    assert parameters["bundles"] == ["people=/srv/models/people"]
    assert (parameters["host"], parameters["port"], parameters["device"]) == ("127.0.0.1", 9001, "cpu")
    assert (service["Type"], service["DynamicUser"]) == ("notify", "yes")
    assert f"sudo cp -r {tmp_path}/systemd/bundle /srv/models/people" in said


def test_a_gpu_is_a_device_that_the_service_sees(tiny_bundle: Path, tmp_path: Path) -> None:
    deploy("systemd", tiny_bundle, tmp_path / "cpu")
    deploy("systemd", tiny_bundle, tmp_path / "gpu", "--cuda")
    assert unit(tmp_path / "cpu" / UNIT)["Service"]["PrivateDevices"] == "yes"
    assert "PrivateDevices" not in unit(tmp_path / "gpu" / UNIT)["Service"]
    assert unit(tmp_path / "gpu" / UNIT)["Service"]["ExecStart"].endswith("--device cuda")


@pytest.mark.parametrize("flag", ["--command", "--place"])
@pytest.mark.parametrize(
    "path", ["seqpipe", "/opt/a b", "/opt/%h", "/opt/$HOME", "/opt/../etc", "/home/a", "/tmp/a", "/"]
)
def test_a_path_that_the_service_cannot_use_is_refused(flag: str, path: str, tiny_bundle: Path, tmp_path: Path) -> None:
    done = seqpipe("deploy", "systemd", tiny_bundle, "-o", tmp_path / "systemd", flag, path)
    assert (done.code, done.err.startswith(f"{flag} {path}: ")) == (2, True)
    assert [*tmp_path.iterdir()] == []
