"""The Kubernetes base: valid by the API's schemas, and right in what the schemas do not say.

`kubernetes-validate` has the schemas. The resources are those that `kubectl kustomize` makes, and the files themselves.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import msgspec
import pytest
import yaml

from http_api.app import ROUTES
from http_api.web.hosts import HostPolicy
from raftlog.cli.commands.cluster import roll_check
from raftlog.config import NodeConfig

from .test_prepare import DEPLOY, Container

BASE = DEPLOY / "kubernetes" / "base"
VERSIONS = ("1.29", "1.32", "1.35")


def rendered() -> list[dict[str, Any]]:
    """The resources as they are applied, or a skip."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(["kubectl", "kustomize", str(BASE)], capture_output=True, text=True, timeout=60, check=True)
    return list(yaml.safe_load_all(done.stdout))


def files() -> list[dict[str, Any]]:
    names = msgspec.yaml.decode((BASE / "kustomization.yaml").read_bytes())["resources"]
    return [msgspec.yaml.decode((BASE / name).read_bytes()) for name in names]


def one(kind: str, resources: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    (found,) = [resource for resource in resources or files() if resource["kind"] == kind]
    return found


POD = one("StatefulSet")["spec"]["template"]["spec"]
(NODE,) = POD["containers"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("resources", [files, rendered])
def test_the_resources_are_valid_by_the_schemas_of_kubernetes(
    version: str, resources: Callable[[], list[dict[str, Any]]]
) -> None:
    found = resources()
    assert {resource["kind"] for resource in found} >= {
        "Namespace", "Service", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy",
    }  # fmt: skip
    for resource in found:
        kubernetes_validate.validate(resource, version, strict=True)


def test_an_invalid_resource_is_found() -> None:
    """The check above is none that accepts everything."""
    wrong = one("StatefulSet")
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_every_selector_selects_the_pods() -> None:
    """One that is empty would select all pods of the namespace."""
    resources = files()
    labels = one("StatefulSet", resources)["spec"]["template"]["metadata"]["labels"]
    selectors = [
        one("StatefulSet", resources)["spec"]["selector"]["matchLabels"],
        one("PodDisruptionBudget", resources)["spec"]["selector"]["matchLabels"],
        one("NetworkPolicy", resources)["spec"]["podSelector"]["matchLabels"],
        one("Service", resources)["spec"]["selector"],
    ]
    assert all(selector and selector.items() <= labels.items() for selector in selectors)


def test_probes_ask_the_right_questions() -> None:
    paths = {name: NODE[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/v1/live", "liveness": "/v1/live", "readiness": "/v1/ready"}
    known = {path for method, path, _ in ROUTES if method == "GET"}
    for name in paths:
        probe = NODE[f"{name}Probe"]["httpGet"]
        assert probe["path"] in known
        # The kubelet would send the pod's address, which a node refuses as a name that is not its own.
        (host,) = probe["httpHeaders"]
        assert host["name"] == "Host" and HostPolicy.of((), ()).allows_host(host["value"])


def test_nodes_start_together_and_stop_one_by_one_when_the_cluster_can_do_without() -> None:
    spec = one("StatefulSet")["spec"]
    assert spec["podManagementPolicy"] == "Parallel", "no node is ready before a majority runs"
    assert spec["updateStrategy"]["type"] == "RollingUpdate"
    assert one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert one("Service")["spec"]["publishNotReadyAddresses"], "nodes find each other before they are ready"
    command = NODE["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert command.startswith("raftlog cluster roll-check ")
    options = {option for parameter in roll_check.params for option in parameter.opts}
    given = [word for word in command.partition(" ||")[0].split() if word.startswith("--")]
    assert given and set(given) <= options
    waits = int(command.split("--timeout ")[1].split()[0])
    assert POD["terminationGracePeriodSeconds"] >= waits + NodeConfig().shutdown_timeout_ms / 1000


def test_pods_have_no_privileges() -> None:
    assert POD["securityContext"]["runAsNonRoot"] and POD["securityContext"]["runAsUser"] == 10001
    assert POD["automountServiceAccountToken"] is False
    for container in (*POD["initContainers"], NODE):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("ordinal", range(3))
def test_each_pod_gets_an_identity_and_settings_that_fit_the_service(ordinal: int, tmp_path: Path) -> None:
    environment = one_config("raftlog-cluster")
    container = Container(
        tmp_path, HOSTNAME=f"raftlog-{ordinal}", **environment | {"RAFTLOG_MORE_SETTINGS": str(BASE / "more.toml")}
    )
    done = container.prepare()
    assert done.returncode == 0, done.stdout + done.stderr
    service = one("Service")
    advertised = container.config.data.advertised
    assert advertised is not None
    assert advertised.host == f"raftlog-{ordinal}.{service['metadata']['name']}.raftlog.svc.cluster.local"
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert ports == {port["name"]: port["containerPort"] for port in NODE["ports"]}
    assert ports == {"api": container.config.api.listen.port, "data": container.config.data.listen.port}


def one_config(name: str) -> dict[str, str]:
    """The values of a generated ConfigMap."""
    kustomization = msgspec.yaml.decode((BASE / "kustomization.yaml").read_bytes())
    (found,) = [config for config in kustomization["configMapGenerator"] if config["name"] == name]
    return dict(literal.split("=", 1) for literal in found["literals"])
