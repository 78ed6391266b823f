# SPDX-License-Identifier: MIT OR Apache-2.0
"""The `tonnage` command, as the wheel has it: `tonnage …` or `python -m tonnage …`."""

import signal
import sys


def main() -> int:
    # Rust code decides on its own what Ctrl-C means; Python's handler would only make a note of it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tonnage._tonnage import main as run

    return run(["tonnage", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
