"""Builds the native CPU library where a C++ compiler is at hand; without one Penstock installs and runs on torch alone."""

import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.sdist import sdist

NATIVE = Path("penstock/runtime/ops/cpu/native")
STATIC = Path("penstock/service/server/ui/static")


class WithWeb(sdist):
    """A source distribution carries the web app built: who installs it needs no npm."""

    def run(self) -> None:
        if not (STATIC / "index.html").exists() and shutil.which("npm"):
            subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd="web", check=True)
            subprocess.run(["npm", "run", "build"], cwd="web", check=True)
        super().run()


setup(
    cmdclass={"sdist": WithWeb},
    ext_modules=[
        Extension(
            "penstock.runtime.ops.cpu._native",
            sources=sorted(str(path) for path in NATIVE.glob("*.cpp")),
            depends=sorted(str(path) for pattern in ("*.h", "*.inl") for path in NATIVE.glob(pattern)),
            language="c++",
            # Each file names the instructions it is for; the library chooses among them when it is opened.
            extra_compile_args=[
                "-std=c++17",
                "-O3",
                "-fno-math-errno",
                "-fno-trapping-math",
                "-ffp-contract=fast",
                "-fvisibility=hidden",
                "-Wno-psabi",
                "-Wno-maybe-uninitialized",
                "-Wno-uninitialized",
                "-pthread",
            ],
            extra_link_args=["-pthread", "-static-libstdc++"],
            optional=True,
        )
    ],
)
