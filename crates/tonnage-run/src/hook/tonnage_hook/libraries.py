# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which files are a library's, and not the script's own."""

import os
import sysconfig

_paths = sysconfig.get_paths()
_folders = {_paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
_FOLDERS = tuple(os.path.join(folder, "") for folder in _folders | {os.path.realpath(folder) for folder in _folders})
# One environment may use the packages of another, and those of the user.
_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def is_library(file: str) -> bool:
    """Whether a file is Python's own or that of an installed package."""
    return file.startswith(_FOLDERS) or any(part in file for part in _PACKAGES)
