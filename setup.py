"""Builds the native CPU library where a C++ compiler is at hand; without one Penstock installs and runs on torch alone."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
NATIVE = Path("penstock/runtime/ops/cpu/native")
STATIC = Path("penstock/service/server/ui/static")


class WithWeb(sdist):
    """A source distribution carries the web app built: who installs it needs no npm."""

    def run(self) -> None:
        if not (STATIC / "index.html").exists() and shutil.which("npm"):
            subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd="web", check=True)
            subprocess.run(["npm", "run", "build"], cwd="web", check=True)
        super().run()


class SideBySide(build_ext):
    """A compiler for each processor. What was built in place, and is newer than its sources, is taken as it is."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        built = HERE / Path(*ext.name.split(".")[:-1]) / target.name
        if built.exists() and built.stat().st_mtime > max(
            Path(one).stat().st_mtime for one in (*ext.sources, *ext.depends)
        ):
            if target.resolve() != built:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(built, target)
            return
        compile_all = self.compiler.compile

        def compile(sources: list[str], **how: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: compile_all([source], **how), sorted(sources, key=_size, reverse=True))
                return [one for objects in made for one in objects]

        self.compiler.compile = compile
        super().build_extension(ext)


def _size(source: str) -> int:
    """What takes longest begins first: files that include kernels."""
    text = Path(source).read_text()
    return len(text) + 10_000 * (text.count(".inl") + 9 * text.count('.cpp"'))


setup(
    cmdclass={"sdist": WithWeb, "build_ext": SideBySide},
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
                "-g0",
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
