"""A real PostgreSQL of the system's packages, on a port of its own: started, stopped and started again."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.machine import free_port

QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}


def reason_against() -> str:
    """Why there can be none here; empty if there can."""
    if not sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        return "PostgreSQL is not installed: apt-get install postgresql"
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        return "PostgreSQL does not run as root and there is no runuser"
    return ""


class Postgres:
    def __init__(self, home: Path) -> None:
        folder = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))[-1].parent
        self._as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []  # it refuses to run as root
        if self._as_user:
            shutil.chown(home, "postgres", "postgres")
        data = home / "data"
        initdb = [folder / "initdb", "-D", data, "-U", "penstock", "--auth=trust", "-N"]
        subprocess.run([*self._as_user, *initdb], check=True, **QUIET)
        self.port = free_port()
        self._options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={home} -c fsync=off"
        self._control = [*self._as_user, folder / "pg_ctl", "-D", data, "-w"]
        self.url = f"postgresql://penstock@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        subprocess.run([*self._control, "-o", self._options, "start"], check=True, **QUIET)

    def stop(self) -> None:
        """As a machine that is switched off."""
        subprocess.run([*self._control, "-m", "immediate", "stop"], check=True, **QUIET)


@contextmanager
def postgres() -> Iterator[Postgres]:
    home = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    made = Postgres(home)
    made.start()
    try:
        yield made
    finally:
        subprocess.run([*made._control, "-m", "immediate", "stop"], check=False, **QUIET)
        shutil.rmtree(home, ignore_errors=True)
