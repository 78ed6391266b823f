# SPDX-License-Identifier: MIT OR Apache-2.0
"""Keeps a dry run from uploading: which libraries are changed, and what was suppressed.

`network.py` has the HTTP clients, `trackers.py` experiment trackers and the Hugging Face Hub. They are imported after
the first of these libraries. The verdict lists each suppressed action with its count. A library that cannot be
changed is noted as `unprotected`.
"""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tonnage_hook.notes import Writer

# The methods that change a module, after its import.
_NETWORK = {
    "http.client": "change_http_client",
    "urllib3.connectionpool": "change_urllib3",
    "httpx._transports.default": "change_httpx",
    "httpx2._transports.default": "change_httpx",
    "aiohttp.client": "change_aiohttp",
    "smtplib": "change_smtplib",
}
_TRACKERS = {
    "wandb.sdk.wandb_init": "change_wandb",
    "wandb.sdk.wandb_settings": "change_wandb_settings",
    "wandb.sdk.wandb_login": "change_wandb_login",
    "wandb.sdk.wandb_run": "change_wandb_run",
    "wandb.sdk.artifacts.artifact": "change_wandb_artifact",
    "mlflow.tracking._tracking_service.utils": "change_mlflow",
    "mlflow.tracking._model_registry.utils": "change_mlflow_registry",
    "comet_ml": "change_comet",
    "neptune.metadata_containers.metadata_container": "change_neptune",
    "huggingface_hub.hf_api": "change_hub",
    "huggingface_hub.repository": "change_hub_repository",
    "trackio": "change_trackio",
    "swanlab": "change_swanlab",
    "clearml": "change_clearml",
}


def _network(offline: Offline) -> Any:
    from tonnage_hook.network import Network

    return Network(offline)


def _trackers(offline: Offline) -> Any:
    from tonnage_hook.trackers import Trackers

    return Trackers(offline)


class Offline:
    """The uploads that this process does not make."""

    def __init__(self, note: Writer, missing_of: Callable[[str], list[str]]) -> None:
        self.note = note
        # The private names that a change needs and a module lacks.
        self.missing_of = missing_of
        self.parts: dict[Callable[[Offline], Any], Any] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self.noted: dict[tuple[str, str], int] = {}
        self.lock = threading.Lock()

    def modules(self) -> dict[str, Callable[[Any], None]]:
        """Which function changes which module, after its import."""
        changes = {name: self._change(_network, method) for name, method in _NETWORK.items()}
        changes.update((name, self._change(_trackers, method)) for name, method in _TRACKERS.items())
        return changes

    def _change(self, part: Callable[[Offline], Any], method: str) -> Callable[[Any], None]:
        def change(module: Any) -> None:
            try:
                missing = self.missing_of(module.__name__)
                if missing:
                    raise AttributeError(f"{', '.join(missing)} is missing")
                if part not in self.parts:
                    self.parts[part] = part(self)
                getattr(self.parts[part], method)(module)
            except Exception as error:
                self.note(unprotected=f"{module.__name__}: {type(error).__name__}: {error}"[:500])

        return change

    def suppress(self, library: str, action: str) -> None:
        """Counts an action that was not carried out. The process may be killed, so counts are written early."""
        with self.lock:
            count = self.counts[library, action] = self.counts.get((library, action), 0) + 1
        if count <= 64 or count & (count - 1) == 0:
            self._write(library, action, count)

    def _write(self, library: str, action: str, count: int) -> None:
        self.noted[library, action] = count
        self.note(suppressed={"library": library, "action": action, "count": count})

    def finish(self) -> None:
        """Writes the counts that have changed since they were written."""
        for (library, action), count in list(self.counts.items()):
            if self.noted.get((library, action)) != count:
                self._write(library, action, count)

    def forget(self) -> None:
        """The counts of a forked child are its own."""
        self.counts = {}
        self.noted = {}
        self.lock = threading.Lock()
