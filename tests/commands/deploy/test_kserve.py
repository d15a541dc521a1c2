"""`seqpipe deploy kserve`: the models of the Kubernetes and KServe clients take the files, key by key."""

from __future__ import annotations

import json
import re
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployed import deploy
from factory import seqpipe
from pydantic import ValidationError

client = pytest.importorskip("kubernetes").client
IMAGE = "registry.example.com/team/toy:1"
KSERVE = "kserve==0.21.0"
OF_KSERVE = {"minReplicas", "maxReplicas", "timeout"}  # of a predictor; everything else is that of a pod


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
def written(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("kserve") / "kserve"
    said = deploy("kserve", tiny_bundle, output, "--image", IMAGE)
    assert f"docker build -t {IMAGE} {output}/image" in said
    return output


def documents(path: Path) -> list[Any]:
    return [*yaml.safe_load_all(path.read_text())]


def test_kubernetes_takes_the_deployment_and_its_service(written: Path) -> None:
    deployment, service = documents(written / "deployment.yaml")
    client.V1Deployment.model_validate(deployment)
    client.V1Service.model_validate(service)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert service["spec"]["ports"][0]["targetPort"] in [port["name"] for port in container["ports"]]


def test_the_predictor_is_a_pod_that_kserve_runs(written: Path) -> None:
    (service,) = documents(written / "inference-service.yaml")
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    predictor = service["spec"]["predictor"]
    pod = {key: value for key, value in predictor.items() if key not in OF_KSERVE}
    client.V1PodSpec.model_validate(pod)
    (container,) = predictor["containers"]
    assert container["name"] == "kserve-container"
    assert {"name": "PROTOCOL", "value": "v2"} in container["env"]


def test_a_wrong_key_type_or_value_would_be_noticed(written: Path) -> None:
    (deployment, _) = documents(written / "deployment.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["readinessProb"] = {}
    container["readinessProbe"]["periodSeconds"] = "2"
    del container["livenessProbe"]["httpGet"]["port"]
    with pytest.raises(ValidationError) as error:
        client.V1Deployment.model_validate(deployment)
    places = {str(fault["loc"][-1]): fault["type"] for fault in error.value.errors()}
    assert places == {"readinessProb": "extra_forbidden", "periodSeconds": "int_type", "port": "missing"}


@pytest.mark.long
@pytest.mark.index
def test_the_models_of_kserve_take_the_inference_service(written: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", KSERVE], check=True)

    def check(document: Any) -> str:
        text = json.dumps(document)
        return subprocess.run([python, "-c", CHECK], input=text, stderr=subprocess.PIPE, text=True).stderr

    (service,) = documents(written / "inference-service.yaml")
    assert check(service) == ""
    predictor = service["spec"]["predictor"]
    predictor["minReplicas"] = "1"
    assert "minReplicas" in check(service)
    predictor["minReplicas"], predictor["minReplica"] = 1, 1
    assert "KeyError: 'minReplica'" in check(service)


@pytest.mark.parametrize("file", ["inference-service.yaml", "deployment.yaml"])
def test_the_server_is_asked_whether_it_is_ready_and_has_few_rights(file: str, written: Path) -> None:
    spec = documents(written / file)[0]["spec"]
    pod = spec["predictor"] if "predictor" in spec else spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == IMAGE
    assert container["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": 8000}
    assert container["livenessProbe"]["httpGet"] == {"path": "/v2/health/live", "port": 8000}
    rights = container["securityContext"]
    assert rights["runAsNonRoot"]
    assert rights["readOnlyRootFilesystem"]
    assert not rights["allowPrivilegeEscalation"]
    user = re.search(r"^USER (\d+)", (written / "image" / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    assert rights["runAsUser"] == int(user[1])
    assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]


def test_a_gpu_is_asked_for(tiny_bundle: Path, tmp_path: Path) -> None:
    deploy("kserve", tiny_bundle, tmp_path / "gpu", "--image", IMAGE, "--cuda")
    (service,) = documents(tmp_path / "gpu" / "inference-service.yaml")
    (container,) = service["spec"]["predictor"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "seqpipe-nlp[gpu,serve]" in (tmp_path / "gpu/image/Dockerfile").read_text()


@pytest.mark.parametrize(
    "image", ["toy", "toy:1.0", "team/toy", "localhost:5000/toy", "ghcr.io/a/b-c:v1", f"a/b@sha256:{'0' * 64}"]
)
def test_names_of_images_are_taken(image: str, tiny_bundle: Path, tmp_path: Path) -> None:
    deploy("kserve", tiny_bundle, tmp_path / "kserve", "--image", image)


@pytest.mark.parametrize("image", ["", "Toy", "a b", "a//b", "a;b", "a:", "a:$(x)", "-a", "http://a/b"])
def test_what_is_no_name_of_an_image_is_refused(image: str, tiny_bundle: Path, tmp_path: Path) -> None:
    done = seqpipe("deploy", "kserve", tiny_bundle, "-o", tmp_path / "kserve", f"--image={image}")
    assert (done.code, "is not an image name" in done.err) == (2, True)
    assert [*tmp_path.iterdir()] == []
