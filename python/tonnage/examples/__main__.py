# SPDX-License-Identifier: MIT OR Apache-2.0
"""`python -m tonnage.examples [FOLDER]`: copies the examples to a folder, this one by default."""

import sys

from tonnage.examples import copy

_ABOUT = {
    "oom.tonnage": "a recording that runs out of memory; serve.py made it",
    "train.tonnage": "a recording that fits; train.py made it",
    "serve.py": "sessions whose caches come and go",
    "train.py": "a small language model in training",
}


def main() -> int:
    words = sys.argv[1:]
    if len(words) > 1 or any(word.startswith("-") for word in words):
        print("usage: python -m tonnage.examples [FOLDER]", file=sys.stderr)
        return 0 if words[0] in ("-h", "--help") else 2
    copies = copy(*words)
    for file in copies:
        print(f"{file!s:<14}  {_ABOUT[file.name]}")
    if not copies:
        print("all of them are already there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
