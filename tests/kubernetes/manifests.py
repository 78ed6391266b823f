# SPDX-License-Identifier: MIT OR Apache-2.0
"""The manifests of deploy/kubernetes: read as `kubectl apply -k` reads them, as far as they need it, and applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from cluster import Cluster

DEPLOY = Path(__file__).resolve().parents[2] / "deploy/kubernetes"
# Where objects of a kind are, and whether they are in a namespace.
PLACES = {
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "Deployment": ("/apis/apps/v1", "deployments", True),
    "Job": ("/apis/batch/v1", "jobs", True),
    "MutatingWebhookConfiguration": ("/apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", False),
    "Namespace": ("/api/v1", "namespaces", False),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies", True),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims", True),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets", True),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings", True),
    "Service": ("/api/v1", "services", True),
    "ServiceAccount": ("/api/v1", "serviceaccounts", True),
}


def read(folder: Path) -> list[Any]:
    """The objects of a folder with a kustomization.yaml."""
    settings = yaml.safe_load((folder / "kustomization.yaml").read_text())
    known = {"apiVersion", "kind", "resources", "namespace", "patches"}
    assert set(settings) <= known, f"{folder}: what tests do not read: {set(settings) - known}"
    objects: list[Any] = []
    for name in settings["resources"]:
        path = (folder / name).resolve()
        objects += read(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for one in objects:
        if "namespace" in settings and PLACES[one["kind"]][2]:
            one["metadata"]["namespace"] = settings["namespace"]
    for patch in settings.get("patches", []):
        target = patch["target"]
        matching = [
            one for one in objects if one["kind"] == target["kind"] and one["metadata"]["name"] == target["name"]
        ]
        assert matching, f"{folder}: a patch for nothing"
        for operation in yaml.safe_load(patch["patch"]):
            for one in matching:
                change(one, operation)
    return objects


def change(target: Any, operation: Any) -> None:
    """Does an operation of a JSON Patch, of which two are used."""
    *above, last = [int(part) if part.isdigit() else part for part in operation["path"].split("/")[1:]]
    for part in above:
        target = target[part]
    if operation["op"] == "add" and last == "-":
        target.append(operation["value"])
        return
    assert operation["op"] == "replace", operation
    target[last]  # Must be there.
    target[last] = operation["value"]


def path_of(one: Any) -> str:
    """The address of an object."""
    base, plural, is_namespaced = PLACES[one["kind"]]
    metadata = one["metadata"]
    inside = f"/namespaces/{metadata['namespace']}" if is_namespaced else ""
    return f"{base}{inside}/{plural}/{metadata['name']}"


def apply(cluster: Cluster, one: Any) -> Any:
    """Applies an object as kubectl does on the server's side; a field that the API server does not know is an error."""
    query = "fieldManager=tests&force=true&fieldValidation=Strict"
    answer = cluster.request("PATCH", f"{path_of(one)}?{query}", one, "application/apply-patch+yaml")
    assert answer.status in (200, 201), f"{path_of(one)}: {answer}"
    return answer.body
