"""The build step that pyproject.toml can't express: shaders are compiled before the package is collected."""

import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithShaders(build_py):
    """Compile the shaders, then build as usual (wheels and editable installs)."""

    def run(self) -> None:
        """Build."""
        root = Path(__file__).resolve().parent
        if subprocess.run([sys.executable, "-m", "shaders.build"], cwd=root).returncode:
            raise SystemExit("the shaders could not be compiled; see the message above")
        super().run()


setup(cmdclass={"build_py": BuildWithShaders})
