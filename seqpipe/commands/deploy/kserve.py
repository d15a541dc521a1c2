"""An InferenceService for KServe, the same as a Deployment for Kubernetes alone, and the image that both run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from seqpipe.commands.deploy.docker import image_files
from seqpipe.commands.deploy.output import NameRule, checked_bundle, next_steps, quoted, write_files
from seqpipe.errors import UsageError
from seqpipe.runtime.bundle import Bundle

NAMES = NameRule(  # KServe appends -predictor and the number of a revision to it
    r"[a-z]([a-z0-9-]*[a-z0-9])?", 40, "small letters, digits and '-', a letter first and no '-' last"
)
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]+)?"
_IMAGE = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[\w][\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?")
_MIB, _RUNTIME, _COPIES = (
    1 << 20,
    768,
    4,
)  # of memory: what the runtime takes, and how often the weights may stand there
_ACCOUNT = 10001  # as in the Dockerfile


def write_kserve(path: Path, output: Path, image: str, name: str | None, cuda: bool, port: int) -> str:
    """Writes the folder; the commands to type next."""
    if not _IMAGE.fullmatch(image):
        raise UsageError(f"--image {image}: is no name of an image; write one such as registry.example.com/ner:1")
    content = checked_bundle(path, output, cuda)
    name = NAMES.choose(name, content, "KServe")
    container = _container(content, image, name, cuda, port)
    deployment, service = _deployment(name, container), _service(name)
    files = {f"image/{file}": data for file, data in image_files(content, name, cuda, port).items()}
    files["inference-service.yaml"] = _documents("Needs KServe.", _inference_service(name, container))
    files["deployment.yaml"] = _documents("For Kubernetes without KServe.", deployment, service)
    write_files(output, files)
    return next_steps(
        output,
        f"docker build -t {image} {quoted(output / 'image')} && docker push {image}",
        f"kubectl apply -f {quoted(output / 'inference-service.yaml')}",
    )


def _container(content: Bundle, image: str, name: str, cuda: bool, port: int) -> dict[str, Any]:
    """What runs: the server of the image, ready when its bundle has answered the golden examples."""
    weights = sum(map(len, content.files.values())) / _MIB
    memory = f"{256 * -(-int(_RUNTIME + _COPIES * weights) // 256)}Mi"
    gpu = {"nvidia.com/gpu": "1"} if cuda else {}
    return {
        "name": "kserve-container",
        "image": image,
        "ports": [{"name": "http1", "containerPort": port, "protocol": "TCP"}],
        "readinessProbe": _probe("ready", port, periodSeconds=2, failureThreshold=3),
        "livenessProbe": _probe("live", port, initialDelaySeconds=120, periodSeconds=10, failureThreshold=3),
        "resources": {
            "requests": {"cpu": "1", "memory": memory, **gpu},
            "limits": {"cpu": "2", "memory": memory, **gpu},
        },
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _ACCOUNT,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }


def _probe(what: str, port: int, **times: int) -> dict[str, Any]:
    return {"httpGet": {"path": f"/v2/health/{what}", "port": port}, "timeoutSeconds": 2, **times}


def _inference_service(name: str, container: dict[str, Any]) -> dict[str, Any]:
    predictor = {
        "minReplicas": 1,
        "maxReplicas": 3,
        "timeout": 60,
        "containers": [{**container, "env": [{"name": "PROTOCOL", "value": "v2"}]}],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"predictor": predictor},
    }


def _deployment(name: str, container: dict[str, Any]) -> dict[str, Any]:
    """Two servers. One that ends waits first, so that the service sends it no more when it stops to listen."""
    (port,) = container["ports"]
    own = {"name": "server", "lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}}}
    pod = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 60,
        "containers": [{**container, **own, "ports": [{**port, "name": "http"}]}],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": _labels(name)},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": _labels(name)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": _labels(name)}, "spec": pod},
        },
    }


def _service(name: str) -> dict[str, Any]:
    ports = [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": _labels(name)},
        "spec": {"selector": _labels(name), "ports": ports},
    }


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "seqpipe", "app.kubernetes.io/instance": name}


def _documents(note: str, *documents: dict[str, Any]) -> str:
    """YAML as Kubernetes reads it, which is version 1.1: `no` is quoted."""
    texts = [yaml.dump(document, Dumper=_Dumper, sort_keys=False) for document in documents]
    return f"# {note}\n" + "---\n".join(texts)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True
