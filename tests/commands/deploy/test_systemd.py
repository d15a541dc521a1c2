"""`seqpipe deploy systemd`: systemd takes the unit, which lets the server do little."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import urllib.request
from configparser import ConfigParser
from pathlib import Path

import pytest
from deployed import check_serve, deploy
from factory import command, seqpipe

UNIT = "seqpipe-toy.service"


def unit(path: Path) -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string(path.read_text())
    return parser


def verify(*units: Path) -> str:
    """What systemd has against units."""
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.fixture
def written(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A unit whose command is there, as systemd looks for it."""
    deploy("systemd", tiny_bundle, tmp_path / "systemd", "--command", "/usr/bin/env")
    return tmp_path / "systemd" / UNIT


@pytest.mark.systemd
@pytest.mark.parametrize("cuda", [False, True])
def test_systemd_takes_the_units(cuda: bool, tiny_bundle: Path, tmp_path: Path) -> None:
    options = ["--cuda"] if cuda else []
    deploy("systemd", tiny_bundle, tmp_path / "a", "--command", "/usr/bin/env", *options)
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


def members(group: str) -> set[str]:
    """The system calls of one of systemd's groups."""
    done = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
    names = [line.strip() for line in done.stdout.splitlines()[1:] if not line.strip().startswith("#")]
    inner = [members(name) for name in names if name.startswith("@")]
    return {name for name in names if name and not name.startswith("@")}.union(*inner)


@pytest.mark.long
@pytest.mark.strace
@pytest.mark.systemd
def test_the_server_makes_no_system_call_that_the_unit_forbids(written: Path, tiny_bundle: Path) -> None:
    trace = written.parent / "trace"
    server = command("serve", tiny_bundle, "--port", "0")
    with subprocess.Popen(["strace", "-f", "-o", trace, *server], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        ready = re.search(r"http://\S+:\d+(?=: ready)", process.stderr.readline())
        assert ready is not None
        with urllib.request.urlopen(f"{ready[0]}/v1/toy", data=b'{"inputs": "Anna"}') as response:
            assert response.status == 200
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        assert process.wait() == 0
    used = set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(), re.MULTILINE))
    assert len(used) > 40
    text = written.read_text()
    allowed, forbidden = re.findall(r"^SystemCallFilter=(~?)(\S+)$", text, re.MULTILINE)
    assert (allowed[0], forbidden[0]) == ("", "~")
    assert used - (members(allowed[1]) - members(forbidden[1])) == set()


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
    assert f"sudo cp -rT {tmp_path}/systemd/bundle /srv/models/people" in said


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
