# SPDX-License-Identifier: MIT OR Apache-2.0
"""A node agent for tests: the pods of one node run as processes of this machine.

There is no container runtime. An image is a folder in which its commands start, a `PATH`, and files that lie elsewhere
here. A path below a mount of a volume is led to the folder of that volume, in the words of a command and in nothing
else. The state of a container is written into the status of its pod, as a kubelet does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import Cluster

# The length of a container's last output that a kubelet keeps.
LAST_WORDS = 4096


@dataclass
class Image:
    """The files that a container finds in its image."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    # Files of the image, and where they are here.
    files: dict[str, Path] = field(default_factory=dict)


class Agent(threading.Thread):
    """Runs the pods of a node."""

    def __init__(self, cluster: Cluster, node: str, images: dict[str, Image]) -> None:
        super().__init__(daemon=True)
        self.cluster, self.node, self.images = cluster, node, images
        self.seen: set[str] = set()
        self.commands: list[list[str]] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        """Until it is stopped."""
        while not self.is_over.is_set():
            query = f"fieldSelector=spec.nodeName%3D{self.node}"
            try:
                pods = self.cluster.items(f"/api/v1/pods?{query}")
            except OSError:
                pods = []
            for pod in pods:
                # Pods of other images are placed here, too, and wait for them.
                containers = pod["spec"].get("initContainers", []) + pod["spec"]["containers"]
                has_images = all(container["image"] in self.images for container in containers)
                if has_images and pod["metadata"]["uid"] not in self.seen:
                    self.seen.add(pod["metadata"]["uid"])
                    threading.Thread(target=self.start_pod, args=(pod,), daemon=True).start()
            time.sleep(0.1)

    def stop(self) -> None:
        """No further pods."""
        self.is_over.set()
        self.join()

    def start_pod(self, pod: Any) -> None:
        """Runs the containers of a pod."""
        metadata, spec = pod["metadata"], pod["spec"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        folder = self.cluster.folder / "pods" / metadata["uid"]
        for volume in spec.get("volumes", []):
            (folder / volume["name"]).mkdir(parents=True)
        for container in spec.get("initContainers", []):
            ended = self.run_container(path, folder, container)
            if ended["exitCode"] != 0:
                self.tell(path, "Failed", [])
                return
        (container,) = spec["containers"]
        self.tell(path, "Running", [(container, {"running": {}})])
        ended = self.run_container(path, folder, container)
        self.tell(path, "Failed" if ended["exitCode"] else "Succeeded", [(container, {"terminated": ended})])
        now = self.cluster.get(path)
        if now is not None and "deletionTimestamp" in now["metadata"]:
            self.cluster.delete(path)

    def run_container(self, path: str, folder: Path, container: Any) -> dict[str, Any]:
        """Runs a container to its end; how it ended."""
        image = self.images[container["image"]]
        last_words = folder / f"{container['name']}.log"
        last_words.touch()
        places = {container.get("terminationMessagePath", "/dev/termination-log"): last_words, **image.files}
        for mount in container.get("volumeMounts", []):
            places[mount["mountPath"]] = folder / mount["name"]
        command = [led(word, places) for word in container["command"] + container.get("args", [])]
        self.commands.append(command)
        environment = {**os.environ, **image.environment}
        environment |= {one["name"]: one["value"] for one in container.get("env", []) if "value" in one}
        log = (folder / f"{container['name']}.output").open("wb")
        process = subprocess.Popen(
            [*self.cluster.before, *command],
            cwd=image.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        while process.poll() is None:
            time.sleep(0.1)
            pod = self.cluster.get(path)
            if pod is None or "deletionTimestamp" in pod["metadata"] or self.is_over.is_set():
                os.killpg(process.pid, signal.SIGKILL)
        message = last_words.read_bytes()[:LAST_WORDS].decode(errors="replace")
        reason = "Error" if process.returncode else "Completed"
        return {"exitCode": process.returncode % 256, "reason": reason, "message": message}

    def tell(self, path: str, phase: str, containers: list[tuple[Any, Any]]) -> None:
        """Writes the status of a pod, if it is still there."""
        statuses = [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "restartCount": 0,
                "ready": False,
                "state": state,
            }
            for container, state in containers
        ]
        body = {"status": {"phase": phase, "containerStatuses": statuses}}
        answer = self.cluster.request("PATCH", f"{path}/status", body, "application/merge-patch+json")
        assert answer.status in (200, 404), answer


def led(word: str, places: dict[str, Path]) -> str:
    """A word, with the path that it is led to where it should be."""
    for path, place in places.items():
        if word == path or word.startswith(f"{path}/"):
            return str(place) + word[len(path) :]
    return word
