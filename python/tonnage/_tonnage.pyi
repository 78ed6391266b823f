from collections.abc import Sequence

VERSION: str

def main(words: Sequence[str]) -> int: ...
def ask(
    words: Sequence[str],
) -> tuple[int, str | None, str | None] | tuple[str, str | None]: ...
def dry_run(
    words: Sequence[str],
    folder: str | None = None,
    environment: Sequence[tuple[str, str]] = (),
    output: str | None = None,
) -> tuple[int, str | None, str | None] | tuple[str, str | None]: ...
def join(pieces: Sequence[str], output: str, facts: Sequence[tuple[str, str]], notes: Sequence[str]) -> int: ...
