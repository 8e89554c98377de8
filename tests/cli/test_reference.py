"""The reference pages are made from the code: every command, route, metric and kind of error stands in them."""

from penstock.cli.main import COMMANDS
from penstock.service.server.app import ROUTES
from penstock.service.server.http.faults import ErrorKind
from tools import reference


def test_every_command_route_and_error_has_its_place(tmp_path) -> None:
    reference.main(tmp_path)
    pages = {path.stem: path.read_text() for path in tmp_path.iterdir()}
    assert set(pages) == set(reference.PAGES)
    assert all(f"## penstock {name}\n" in pages["flags"] for name in COMMANDS)
    assert all(f"`{route.path}`" in pages["routes"] for route in ROUTES)
    assert all(f"| {kind.value} |" in pages["errors"] for kind in ErrorKind)
    assert "vllm:num_requests_running" in pages["metrics"]
    assert "penstock_router_requests" in pages["metrics"]
    assert "`max_context`" in pages["settings"]
