"""Unpacks the source of efficientnet_pytorch 0.7.1 into examples/imagenet/efficientnet_pytorch.

    python tools/get_efficientnet.py                       # with this Python's pip
    python tools/get_efficientnet.py --archive FILE.tar.gz # from a file that is already here

A second run finds the folder and does nothing; an edited copy is left alone (--force replaces it).
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

NAME, VERSION = "efficientnet_pytorch", "0.7.1"
# Of efficientnet_pytorch-0.7.1.tar.gz on PyPI, the only file of this release.
SHA256 = "00b9b261effce59d2d47aae2ad238c29a2a65175470f41ada7ecac439b7c1ee1"
FILES = ("__init__.py", "model.py", "utils.py")
TARGET = Path(__file__).resolve().parent.parent / "examples" / "imagenet" / NAME


def download(folder: Path) -> Path:
    """Fetches the archive with pip, which checks the hash before it runs code of the archive."""
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{NAME}=={VERSION} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", NAME]
    command += ["--require-hashes", "--disable-pip-version-check", "-d", str(folder)]
    command += ["-r", str(requirement)]
    # pip asks the archive for its metadata, which needs setuptools: first the one that is
    # installed, then one that pip fetches.
    outputs = []
    for extra in (["--no-build-isolation"], []):
        done = subprocess.run(command + extra, capture_output=True, text=True)
        archives = list(folder.glob("*.tar.gz"))
        if done.returncode == 0 and archives:
            return archives[0]
        outputs.append(done.stderr.strip() or done.stdout.strip())
    sys.exit(
        f"error: pip could not download {NAME}=={VERSION}:\n{outputs[-1]}\n"
        f"If this machine has no network, fetch {NAME}-{VERSION}.tar.gz elsewhere and run\n"
        f"  {sys.executable} {__file__} --archive FILE.tar.gz"
    )


def check(archive: Path) -> None:
    try:
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
    except OSError as error:
        sys.exit(f"error: {error}")
    if found != SHA256:
        sys.exit(f"error: {archive}: sha256 is {found}, expected {SHA256}")


def unpack(archive: Path, target: Path) -> None:
    """Writes the package beside `target` and renames it, so that a cut run leaves no half of it."""
    top = f"{NAME}-{VERSION}"
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=target.parent))
    try:
        unfinished.chmod(0o755)
        with tarfile.open(archive) as tar:
            members = {name: f"{top}/{NAME}/{name}" for name in FILES}
            members["PKG-INFO"] = f"{top}/PKG-INFO"  # author and license (Apache)
            for name, member in members.items():
                (unfinished / name).write_bytes(tar.extractfile(member).read())
        if target.exists():
            shutil.rmtree(target)
        os.rename(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--archive", type=Path, metavar="FILE", help="use this file, not pip")
    parser.add_argument("--target", type=Path, default=TARGET, metavar="DIR", help="write here")
    parser.add_argument("--force", action="store_true", help="replace the folder if it is there")
    args = parser.parse_args()
    if not args.force and all((args.target / name).is_file() for name in FILES):
        print(f"{NAME} is already in {args.target}")
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = args.archive or download(Path(folder))
        check(archive)
        unpack(archive, args.target)
    print(f"{NAME} {VERSION} (sha256 {SHA256[:12]}...) unpacked into {args.target}")


if __name__ == "__main__":
    main()
