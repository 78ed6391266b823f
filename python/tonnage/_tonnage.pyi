from collections.abc import Sequence

VERSION: str

def main(words: Sequence[str]) -> int: ...
def ask(
    words: Sequence[str],
) -> tuple[int, str | None, str | None] | tuple[str, str | None]: ...
def join(
    pieces: Sequence[str], output: str, facts: Sequence[tuple[str, str]], notes: Sequence[str]
) -> int: ...
