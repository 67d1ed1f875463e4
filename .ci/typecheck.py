"""Run mypy over the import package, which ``package_dir`` of setup.py spreads over several folders of the repository.

mypy does not follow that mapping, so a folder of links shows it the package as it is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FARM = ROOT / "build" / "typecheck"


def link(source: Path, target: Path) -> None:
    """Make ``target`` a link to ``source``."""
    if target.is_symlink():
        target.unlink()
    target.symlink_to(source, target_is_directory=source.is_dir())


def main() -> int:
    """Link the package together and check it."""
    package = FARM / "mobopt"
    package.mkdir(parents=True, exist_ok=True)
    for path in (ROOT / "mobopt").iterdir():
        if path.name != "__pycache__":
            link(path, package / path.name)
    for name in ("passes", "runtimes", "shaders"):
        link(ROOT / name, package / name)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "-p", "mobopt"]
    failed = subprocess.call(command, cwd=FARM, env={**os.environ, "MYPYPATH": str(FARM)})
    scripts = [sys.executable, "-m", "mypy", "cli.py", ".ci/typecheck.py"]
    return subprocess.call(scripts, cwd=ROOT) or failed


if __name__ == "__main__":
    sys.exit(main())
