# SPDX-License-Identifier: MIT OR Apache-2.0
"""The settings of a run, which `tonnage run` writes beside the hook."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SETTINGS: dict[str, Any] = {}


def read_settings(folder: str) -> None:
    """Reads the settings of the hook in a folder, in place of those before."""
    with open(os.path.join(folder, "tonnage.json"), encoding="utf-8") as file:
        settings = json.load(file)
    SETTINGS.clear()
    SETTINGS.update(settings)
