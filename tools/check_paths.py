"""Refuses committed files that name a path of the machine they were written on.

    python tools/check_paths.py [ROOT]

Home folders and work folders of somebody's machine mean nothing to the reader, and a test or a
script that depends on one works nowhere else.
"""

import re
import subprocess
import sys
from pathlib import Path

# Written in pieces, so that this file passes its own check.
FOLDERS = ["work", "root", "tmp/v", "tmp/dl", "tmp/build-[a-z]+", r"home/[a-z][a-z0-9_-]*"]
# Not part of a longer path or an address; a whole folder name.
BEFORE, AFTER = r"(?<![\w.}$*)\]-])/", r"(?:/|\b(?![\w.-]))"
MACHINE_PATH = re.compile(f"{BEFORE}(?:{'|'.join(FOLDERS)}){AFTER}")
# People who stand for the reader in examples.
ALLOWED = re.compile(r"/home/(?:user|me|you)\b")


def wrong_lines(text: str) -> list[tuple[int, str]]:
    """Line number and path of every machine path in `text`."""
    return [
        (number, found[0])
        for number, line in enumerate(text.splitlines(), 1)
        for found in MACHINE_PATH.finditer(line)
        if not ALLOWED.match(line, found.start())
    ]


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    count = 0
    for name in names:
        path = root / name
        data = path.read_bytes() if path.is_file() else b""
        if b"\0" in data[:4096]:  # a picture or an archive
            continue
        for number, found in wrong_lines(data.decode("utf-8", errors="replace")):
            print(f"{name}:{number}: {found}: a path of one machine")
            count += 1
    print(f"check_paths: {len(names)} files, {count} machine paths")
    return 1 if count or not names else 0


if __name__ == "__main__":
    sys.exit(main())
