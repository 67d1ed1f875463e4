"""What pyproject.toml can't express: all rooms are packages, and shaders are compiled before they are collected."""

import subprocess
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOMS = {"mobopt": "mobopt", "mobopt.passes": "passes", "mobopt.shaders": "shaders", "mobopt.runtimes": "runtimes"}


class BuildWithShaders(build_py):
    """Compile the shaders, then build as usual (wheels and editable installs)."""

    def run(self) -> None:
        """Build."""
        root = Path(__file__).resolve().parent
        if subprocess.run([sys.executable, "-m", "shaders.build"], cwd=root).returncode:
            raise SystemExit("the shaders could not be compiled; see the message above")
        super().run()


setup(
    packages=[*ROOMS, *(f"{room}.{name}" for room, folder in ROOMS.items() for name in find_packages(folder))],
    package_dir=ROOMS,
    cmdclass={"build_py": BuildWithShaders},
)
