"""Chat templates of published models, as llama-cpp-python's source package carries them: fetched once into `.models/`, never
committed. A test that wants them is skipped where they cannot be had.
"""

import hashlib
import io
import re
import tarfile
import urllib.request
from functools import cache

import pytest

from tests.real import FOLDER

INDEX = "https://pypi.org/simple/llama-cpp-python/"
PACKAGE = "llama_cpp_python-0.3.36.tar.gz"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
MEMBER = re.compile(r"/models/templates/([^/]+)\.jinja$")
WAIT_S = 20.0


def real_templates() -> dict[str, str]:
    """Their sources by name."""
    found = _found()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@cache
def _found() -> dict[str, str] | str:
    folder = FOLDER / "templates"
    if not folder.exists():
        try:
            _fetch()
        except (OSError, ValueError) as error:
            return f"templates of published models cannot be had: {error}"
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}


def _fetch() -> None:
    with urllib.request.urlopen(INDEX, timeout=WAIT_S) as page:
        link = re.search(rf'href="([^"#]*{re.escape(PACKAGE)})#', page.read().decode())
    if link is None:
        raise ValueError(f"the index does not name {PACKAGE}")
    with urllib.request.urlopen(link[1], timeout=WAIT_S) as response:
        data = response.read()
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise ValueError(f"{PACKAGE} is another file than expected")
    partial = FOLDER / ".templates"
    partial.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            if (name := MEMBER.search(member.name)) and (file := archive.extractfile(member)):
                (partial / f"{name[1]}.jinja").write_bytes(file.read())
    partial.rename(FOLDER / "templates")
