"""The `penstock` command: finds the subcommand, builds its config, runs it, and turns errors into exit statuses.

A subcommand is a module with a frozen dataclass `Config` and a function `run(config) -> int`, imported when chosen. One with
many of a kind has them in a table `MEMBERS`, each with a `Config` and a `run` of its own, chosen by the next word.
Nothing heavy is imported here: the help of `penstock` must appear at once.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from shutil import get_terminal_size
from typing import Any

from penstock.console import args, config_file
from penstock.console.flags import listed, suggestion
from penstock.console.help import command_help, layout
from penstock.console.show import printable
from penstock.errors import ConfigError, PenstockError, RequestError
from penstock.log import hold_streams

FAULT_STATUS = 1
USAGE_STATUS = 2
INTERRUPTED_STATUS = 130
BROKEN_PIPE_STATUS = 141
OVERVIEW_INDENT = 20


@dataclass(frozen=True, slots=True)
class Command:
    """A row of the table of commands. A name may be two words: the longer name wins over the first word alone."""

    module: str
    help: str
    flags: str = ""
    """Module of its `Config`, where that is another: what is heavy is imported once the flags have been read."""

    def run(self, config: Any) -> Any:
        return import_module(self.module).run(config)


def _ours(module: str, help: str, flags: str = "") -> Command:
    return Command(f"penstock.cli.{module}", help, flags and f"penstock.cli.{flags}")


COMMANDS: Mapping[str, Command] = {
    "serve": _ours("serve", "Serve a model over HTTP: OpenAI's, Anthropic's and Ollama's APIs"),
    "up": _ours("fleet.up", "Place replicas on a Ray cluster, route to them, replace and scale them"),
    "status": _ours("fleet.status", "Show what penstock up has placed, and how starts went"),
    "rank": _ours("fleet.rank", "Compute a part of a model for an engine on another machine"),
    "route": _ours("fleet.route", "Serve many replicas as one: route, retry, fail over, drain"),
    "keys": _ours("fleet.keys", "Create, list, rotate or revoke API keys of a gateway"),
    "usage": _ours("fleet.usage", "Show what was used through a gateway and what it cost"),
    "cache": _ours("fleet.sessions", "List, pin, drop, export or import sessions of a server's KV cache"),
    "adapters": _ours("fleet.adapters", "List, load or unload the adapters of a running server"),
    "doctor": _ours("doctor", "Diagnose this machine or a server: symptom, layer, remedy"),
    "doctor cache": _ours("fleet.cache", "Say why prompts nearly hit a server's prefix cache"),
    "top": _ours("top", "Watch a running server: running and waiting requests, tokens per second"),
    "chat": _ours("talk.chat", "Talk with a model in the terminal"),
    "generate": _ours("talk.generate", "Complete prompts, all of them at once"),
    "batch run": _ours("batch.run", "Answer a file of requests without a server; resumes where it was stopped"),
    "conform": _ours("conform.run", "Check any server through the real clients of three dialects"),
    "pull": _ours("model.pull", "Fetch a model"),
    "verify": _ours("model.verify", "Compare a fetched model with its checksums"),
    "list": _ours("model.list_models", "List the models that have been fetched"),
    "show": _ours("model.show_model", "Show what a model is made of and what it takes"),
    "detect": _ours("detect", "Look for the watermark that serve --watermark leaves in a text"),
    "warm": _ours("model.warm", "Compile a model's GPU kernels before anybody serves it"),
    "quantize": _ours("quantize", "Make a model smaller, in a format that others read too"),
    "eval": _ours("evaluate.command", "Measure a model on a text or on questions, alone or beside another"),
    "eval report": _ours("evaluate.report", "Report what making a model smaller changed: page and values"),
    "eval compare": _ours("evaluate.compare", "Compare two reports of eval: better, worse, or chance"),
    "train-draft": _ours(
        "train_draft", "Train a drafter for a model on its own answers: Medusa heads or an EAGLE head"
    ),
    "bench": _ours("bench.command", "Benchmark any OpenAI-compatible server", "bench.config"),
    "bench compare": _ours("bench.compare", "Compare two reports of bench"),
    "bench throughput": _ours("bench.throughput", "Measure tokens per second of the engine alone"),
    "bench latency": _ours("bench.latency", "Measure how long a batch takes, repeatedly"),
    "profile": _ours("profile", "Measure step times of this machine, for simulator and planner"),
    "profile step": _ours("bench.step", "Show where a step's time goes, beside what this machine reaches"),
    "tune": _ours(
        "tune.command", "Find the settings of serve that keep an SLO here: simulated, then measured", "tune.config"
    ),
    "plan": _ours("plan.command", "Plan what to buy for a model and a load, and how to launch it", "plan.config"),
    "plan verify": _ours("plan.verify", "Prove a plan on a live server: predicted beside measured"),
    "lint": _ours("lint", "Find common mistakes in a deployment's settings"),
    "advise": _ours("advise", "Walk a decision tree by questions; print checklists and the cheat sheet"),
    "calc": _ours("calc", "Work out throughput, memory, users, cost and more, formula by formula"),
    "simulate": _ours("simulate.command", "Simulate a load on any hardware with the engine's own scheduler"),
}


def main(words: Sequence[str] | None = None, commands: Mapping[str, Command] = COMMANDS) -> int:
    """Run one command line and return its exit status. Errors nobody foresaw keep their traceback."""
    hold_streams()
    try:
        status = _status(sys.argv[1:] if words is None else words, commands)
        print(end="", flush=True)
    except BrokenPipeError:
        if not _is_reader_gone():
            raise
        return BROKEN_PIPE_STATUS
    return status


def _status(words: Sequence[str], commands: Mapping[str, Command]) -> int:
    try:
        return _dispatch(words, commands)
    except PenstockError as error:
        print(f"penstock: error: {printable(str(error))}", file=sys.stderr)
        return USAGE_STATUS if isinstance(error, ConfigError | RequestError) else FAULT_STATUS
    except KeyboardInterrupt:
        print("penstock: interrupted", file=sys.stderr)
        return INTERRUPTED_STATUS


def _dispatch(words: Sequence[str], commands: Mapping[str, Command]) -> int:
    first, *rest = words or ("--help",)
    if first in ("-h", "--help"):
        print(_overview(commands))
    elif first == "--version":
        print(f"penstock {_version()}")
    elif f"{first} {' '.join(rest[:1])}" in commands:
        return _run(f"penstock {first} {rest[0]}", commands[f"{first} {rest[0]}"], rest[1:])
    elif first in commands:
        module = import_module(commands[first].flags or commands[first].module)
        members = getattr(module, "MEMBERS", {})
        if rest and rest[0] in members:
            return _run(f"penstock {first} {rest[0]}", members[rest[0]], rest[1:], members[rest[0]])
        return _run(f"penstock {first}", commands[first], rest)
    elif seconds := [name.partition(" ")[2] for name in commands if name.startswith(f"{first} ")]:
        raise ConfigError(f"penstock {first} needs a second word: {listed(seconds)}")
    elif first.startswith("-"):
        known = suggestion(first, ("--help", "--version"))
        raise ConfigError(f"unknown flag {first}{known or '; flags follow a command: penstock COMMAND ' + first}")
    else:
        raise ConfigError(f"unknown command {first}{suggestion(first, commands) or '; see penstock --help'}")
    return 0


def _run(program: str, command: Any, words: Sequence[str], module: Any = None) -> int:
    """`module` has the flags: that of the command, unless it is one of a table."""
    module = module or import_module(command.flags or command.module)
    arguments = args.parse(module.Config, words)
    if arguments.wants_help:
        print(command_help(program, module.Config, get_terminal_size().columns))
        return 0
    values: dict[str, Any] = {}
    for path in arguments.files:
        values |= config_file.read(module.Config, path)
    values |= arguments.values
    found = getattr(module, "found_values", None)
    if found is not None:
        values = found(values) | values
    config = args.build(module.Config, values)
    if arguments.wants_config:
        print(config_file.write(config))
        return 0
    return int(command.run(config))


def _overview(commands: Mapping[str, Command]) -> str:
    width = get_terminal_size().columns
    rows = (
        line
        for name, command in commands.items()
        for line in layout(name, command.help, max(width, 60), OVERVIEW_INDENT)
    )
    return "\n".join(
        [
            "usage: penstock COMMAND [flags]",
            "",
            "An inference system for language models: engine, server, simulator and planner built on one scheduler.",
            "",
            "commands:",
            *rows,
            "",
            "penstock COMMAND --help lists the flags of a command; penstock --version prints the version.",
        ]
    )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slower to import than all of the above

    try:
        return version("penstock")
    except PackageNotFoundError:
        return "(not installed: run from its source)"


def _is_reader_gone() -> bool:
    """Whether the pipe that broke is our output, as under `| head`. What is left unwritten then goes nowhere."""
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
