"""`penstock simulate A.toml B.toml`: deployments on the same terms, side by side, with what they cost."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from penstock.console import config_file
from penstock.console.args import arguments_of, build, parse
from penstock.console.show import print_json, print_table, printable
from penstock.errors import ConfigError
from penstock.tools.planner.figures import dollars_per_million

Simulated = Callable[[Any], dict[str, Any]]
"""The data of a run of one config of `simulate`."""


def run_all(config: Any, simulated: Simulated) -> int:
    if config.compare or config.chrome_trace:
        raise ConfigError("files are compared with one another; leave out --compare and --chrome-trace")
    if len({path.name for path in config.files}) < len(config.files):
        raise ConfigError("two of the files have one name; rename one, since columns are named by them")
    common = parse(type(config), arguments_of(replace(config, files=()))).values
    found = {path.name: side(path, type(config), common, simulated) for path in config.files}
    if config.json:
        print_json(found)
        return 0
    rows = [(name, *(one["figures"][name] for one in found.values())) for name in next(iter(found.values()))["figures"]]
    print_table(("", *(printable(name) for name in found)), rows)
    for name, one in found.items():
        print(
            printable(f"{name}: bound by {one['bound']}{'; UNSTABLE: its queue grows' if one['is_unstable'] else ''}")
        )
    return 0


def side(path: Path, kind: type, common: Mapping[str, Any], simulated: Simulated) -> dict[str, Any]:
    """What one deployment comes to. Flags of the command line hold over its file."""
    config: Any = build(kind, config_file.read(kind, str(path)) | dict(common))
    data = simulated(config)
    (result,) = data["results"].values()
    summary, machines = result["summary"], config.machines
    devices = machines.layout.devices_per_copy
    replicas = result["replica_seconds"] / max(summary["duration_s"], 1e-9)
    price = data["step_times"].get("hardware", {}).get("price_per_hour")
    hourly = None if price is None else price * replicas * devices
    tokens_per_s = summary["output_tokens_per_s"]
    is_unstable = not result["queue"]["stability"]["is_stable"]
    figures = {
        "model": config.model,
        "device": machines.hardware,
        "devices": round(replicas * devices, 2),
        "tokens/s": tokens_per_s,
        "requests/s": summary["requests_per_s"],
        **{
            f"{name.upper()} {share}, ms": None if is_unstable else 1e3 * summary[name][share]
            for name, share in product(("ttft", "tpot"), ("p50", "p99"))
        },
        "goodput, %": 100.0 * summary["good_fraction"],
        "KV held but empty, %": 100.0 * result["kv_waste_fraction"],
        "$ an hour": hourly,
        "$ a million tokens": dollars_per_million(hourly, tokens_per_s) if hourly and tokens_per_s else None,
        "$ a 1,000 good requests": hourly / (3.6 * summary["good_requests_per_s"])
        if hourly and summary["good_requests_per_s"]
        else None,
    }
    return {"figures": figures, "bound": result["bound"], "is_unstable": is_unstable}
