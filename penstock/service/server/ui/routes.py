"""The rows that the web app adds to the route table: method, path, handler, help, body; and its files."""

from starlette.requests import Request

from penstock.service.server.http.answer import Plain
from penstock.service.server.http.faults import not_found
from penstock.service.server.ui import handlers, learning
from penstock.service.server.ui.handlers import BenchBody, BlocksBody, EmptyBody, MachineBody, ToolBody
from penstock.service.server.ui.learning import CalculateBody, LintBody
from penstock.service.server.ui.streams import StreamsBody, stream_chats
from penstock.service.webfiles import web_file


async def asset(request: Request) -> Plain:
    """A file of the app; of `/`, the app for clients that read HTML and a line of text for all others."""
    found = web_file(request.url.path, request.headers.get("accept", "").encode("latin-1"))
    if found is None:
        raise not_found("there is no such file; reload the page")
    ((_, kind), *headers), body = found.answer(request.headers.get("accept-encoding", "").encode("latin-1"))
    return Plain(body, kind.decode(), headers)


ROWS = (
    ("GET", "/", asset, "The web app"),
    ("GET", "/assets/{name:path}", asset, "A file of the web app"),
    ("GET", "/icon.svg", asset, "The web app's icon"),
    ("GET", "/app/v1/about", handlers.about, "What is served, and what pages may name"),
    ("GET", "/app/v1/events", handlers.events, "What is going on, as a stream of events"),
    ("GET", "/app/v1/requests", handlers.list_requests, "Requests in progress and lately ended"),
    ("GET", "/app/v1/requests/{name}", handlers.show_request, "Where the time of one request went"),
    ("POST", "/app/v1/requests/{name}/cancel", handlers.cancel_request, "End a request", EmptyBody),
    ("POST", "/app/v1/streams", stream_chats, "Several chats at once, as one stream of events", StreamsBody),
    ("POST", "/app/v1/simulate", handlers.simulate, "Run the simulator, as a stream of events", ToolBody),
    ("POST", "/app/v1/plan", handlers.plan, "Run the planner", ToolBody),
    ("POST", "/app/v1/bench", handlers.bench, "Benchmark this server, as a stream of events", BenchBody),
    ("POST", "/app/v1/machine", handlers.machine, "What this machine reaches, measured once", MachineBody),
    ("POST", "/app/v1/profile", handlers.profile, "Where a step's time goes, part by part", ToolBody),
    ("GET", "/app/v1/models", handlers.list_residents, "Models that come and go: state, memory, who waits"),
    (
        "GET",
        "/app/v1/prefixes",
        handlers.prefixes,
        "Why prompts nearly hit the prefix cache: counts, no text unless asked for",
    ),
    ("GET", "/app/v1/fleet", handlers.fleet, "What serves here"),
    ("GET", "/app/v1/blocks/{number}", handlers.show_block, "Who holds a block of the KV cache"),
    ("POST", "/app/v1/blocks", handlers.blocks, "Lay sequences out in memory", BlocksBody),
    ("GET", "/app/v1/advice", learning.advice, "Decision trees, checklists, the cheat sheet"),
    ("POST", "/app/v1/lint", learning.check_settings, "Common mistakes of a deployment's settings", LintBody),
    ("GET", "/app/v1/quizzes", learning.list_quizzes, "The areas there are quizzes on"),
    ("GET", "/app/v1/quizzes/{name}", learning.show_quiz, "Questions on an area, numbers drawn by ?seed="),
    ("GET", "/app/v1/calculators", learning.list_calculators, "The calculators and their inputs"),
    ("POST", "/app/v1/calculators/{name}", learning.run_calculator, "Run a calculator", CalculateBody),
)
