# SPDX-License-Identifier: MIT OR Apache-2.0
"""Adds the page that answers in a browser to the site, when mkdocs builds it.

The page holds the command as WebAssembly and is built before the site: crates/tonnage-cli/web/README.md. Its path is
TONNAGE_PAGE, or target/web/open.html. A site without it has a page that names the command to run instead.
"""

import logging
import os
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
ABSENT = """<!doctype html><meta charset="utf-8"><title>Not built</title>
<p>This copy of the site was built without the page. Run <code>tonnage explain FILE</code> instead.</p>
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    page = Path(os.environ.get("TONNAGE_PAGE") or ROOT / "target" / "web" / "open.html")
    if page.exists():
        content = page.read_text(encoding="utf-8")
    else:
        logging.getLogger("mkdocs.hooks").info("%s is not built; the site names the command instead", page)
        content = ABSENT
    files.append(File.generated(config, "open.html", content=content))
    return files
