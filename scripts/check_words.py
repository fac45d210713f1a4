"""Checks that code, help texts and docs use the field's words: `scripts/check_words.py [FILE…]`.

`scripts/words.toml` lists the words that must not appear, the words to use instead, and the places where one is right, with
the reason. Prints one line per finding and exits with 1 if there is one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKED = (".py", ".c", ".h", ".inc", ".cl", ".md", ".toml", ".json", ".html", ".j2", ".yaml")
LEFT_OUT = ("scripts/words.toml", "LICENSE")


@dataclass(frozen=True)
class Word:
    """A word that must not appear.

    Attributes:
        pattern: matches it, alone or as a part of an identifier.
        instead: what to write.
        allowed: shell patterns of paths where it has its ordinary meaning.
        phrases: text in which it is right wherever it stands.
    """

    pattern: re.Pattern[str]
    instead: str
    allowed: tuple[str, ...]
    phrases: tuple[re.Pattern[str], ...]


def read_words(path: Path) -> list[Word]:
    """The list of words."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["word"]
    return [
        Word(
            re.compile(entry["pattern"], re.IGNORECASE),
            entry["instead"],
            tuple(place["path"] for place in entry.get("allowed", ()) if "path" in place),
            tuple(
                re.compile(place["phrase"], re.IGNORECASE) for place in entry.get("allowed", ()) if "phrase" in place
            ),
        )
        for entry in entries
    ]


def findings(name: str, text: str, words: Sequence[Word]) -> Iterator[str]:
    """One line per use of a word in a file: `path:line: 'word', write …`."""
    here = [word for word in words if not any(fnmatch(name, pattern) for pattern in word.allowed)]
    for number, line in enumerate(text.splitlines(), 1):
        for word in here:
            rest = line
            for phrase in word.phrases:
                rest = phrase.sub("", rest)
            found = word.pattern.search(rest)
            if found:
                yield f"{name}:{number}: {found.group(0)!r}, write {word.instead}"


def main(arguments: Sequence[str]) -> int:
    """Checks the files named, or all that git tracks; returns the exit status."""
    words = read_words(ROOT / "scripts" / "words.toml")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [str(Path(name).resolve().relative_to(ROOT)) for name in arguments] or listed.splitlines()
    count = 0
    for name in names:
        path = ROOT / name
        if path.suffix not in CHECKED or name in LEFT_OUT or not path.is_file():
            continue
        for line in findings(name, path.read_text(encoding="utf-8"), words):
            print(line)
            count += 1
    if count:
        print(f"{count} uses of words that have one in the field: rename them, or add a reason to scripts/words.toml")
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
