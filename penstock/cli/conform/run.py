"""`penstock conform`: judge any server through the clients' own libraries."""

import os
from dataclasses import dataclass, field
from importlib.util import find_spec

from penstock.console.show import print_json, printable
from penstock.errors import ConfigError
from penstock.tools.conform.check import CheckVerdict, Target, run_checks
from penstock.tools.conform.table import SUITES, is_conformant, report, summary

UNMET_STATUS = 1


@dataclass(frozen=True, slots=True)
class Config:
    """Judge a server, ours or another's, through the real clients of OpenAI, Anthropic and Ollama.

    Status 0 if every MUST of the dialects that were asked for is met. Needs pip install 'penstock[conform]'.
    """

    url: str = field(default="http://127.0.0.1:8000", metadata={"positional": True})
    """Address of the server, without /v1"""
    dialect: tuple[str, ...] = ()
    """Only these: openai, anthropic, ollama"""
    model: str = ""
    """Model to ask for (default: the first that is listed)"""
    api_key: str = ""
    """Key to send; PENSTOCK_API_KEY holds one too"""
    json: bool = False
    """Print JSON for machines"""


def run(config: Config) -> int:
    missing = [name for name in ("openai", "anthropic", "ollama", "httpx") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"conform needs {', '.join(missing)}; pip install 'penstock[conform]'")
    unknown = [name for name in config.dialect if name not in SUITES]
    if unknown:
        raise ConfigError(f"--dialect {unknown[0]} is not known; there are {', '.join(SUITES)}")
    url = config.url.rstrip("/").removesuffix("/v1")
    key = config.api_key or os.environ.get("PENSTOCK_API_KEY") or "none"
    target = Target(url, config.model or _first_model(url, key), key)
    checks = [check for name, suite in SUITES.items() if name in (config.dialect or SUITES) for check in suite.checks]

    def show(verdict: CheckVerdict) -> None:
        if not config.json:
            mark = "ok  " if verdict.has_passed else "FAIL"
            fault = f": {printable(verdict.fault)}" if verdict.fault else ""
            print(
                f"{mark}  {verdict.check.dialect:9}  {verdict.check.level.value:6}  {verdict.check.name}{fault}",
                flush=True,
            )

    verdicts = run_checks(checks, target, show)
    if config.json:
        print_json(report(verdicts))
    else:
        for dialect, levels in summary(verdicts).items():
            print(f"{dialect:9}  " + ", ".join(f"{level} {count}" for level, count in levels.items()))
    return 0 if is_conformant(verdicts) else UNMET_STATUS


def _first_model(url: str, key: str) -> str:
    import httpx

    try:
        answer = httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=10.0)
        name: str = answer.json()["data"][0]["id"]
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(f"{url} lists no models; start it, or name one with --model") from error
    return name
