# SPDX-License-Identifier: MIT OR Apache-2.0
"""Has libraries write files where the preloaded library can redirect them."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def redirect_safetensors(module: Any) -> None:
    """Has safetensors write where the preloaded library can redirect it: its own writes bypass the C library."""
    original = module.serialize_file

    def serialize_file(data: Any, filename: Any, *rest: Any, **named: Any) -> Any:
        if os.environ.get("TONNAGE_FILES_BY") != "preload":
            return original(data, filename, *rest, **named)
        import shutil
        import tempfile

        with tempfile.TemporaryDirectory(dir=os.environ["TONNAGE_RUN"]) as folder:
            written = os.path.join(folder, "file")
            result = original(data, written, *rest, **named)
            shutil.copyfile(written, filename)
        return result

    module.serialize_file = serialize_file
