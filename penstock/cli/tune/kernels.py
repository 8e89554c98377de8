"""`penstock tune --kernels`: tiles of this GPU's kernels for a model's shapes, kept in a file that engines read at start."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.plan.model import describe
from penstock.cli.tune.config import Config
from penstock.console.files import write_file
from penstock.console.show import print_json, print_table
from penstock.errors import ConfigError
from penstock.tools.measure.this_machine import machine_facts
from penstock.tools.measure.tiles import TILES_VERSION, read_tiles, tiles_path

if TYPE_CHECKING:
    from penstock.runtime.execution.cuda.tile_tuning import TileChoice


def run(config: Config) -> int:
    if config.model.device == "cpu" or not machine_facts()["gpus"]:
        raise ConfigError(
            "tiles of kernels are chosen on a GPU; a CPU's are part of the native library: leave --kernels"
        )
    from penstock.runtime.execution.cuda.tile_tuning import tune_tiles  # torch: not needed to say what the flags are
    from penstock.runtime.execution.device import open_device

    device = open_device(config.model.device)
    choices = list(tune_tiles(describe(config.model.model).spec, device.torch_device))
    path = config.out.with_suffix(".json") if config.out else tiles_path(device.name)
    kept = {(kernel, out, size): tiles for kernel, out, size, tiles in read_tiles(path)}
    kept |= {(one.kernel, one.num_out, one.size): list(one.config) for one in choices}
    rows = [[*key, tiles] for key, tiles in kept.items()]
    write_file(
        path, json.dumps({"penstock_tiles": TILES_VERSION, "device": device.name, "tiles": rows}, indent=1) + "\n"
    )
    _show(config, choices, path)
    return 0


def _show(config: Config, choices: "Sequence[TileChoice]", path: Path) -> None:
    data = [asdict(one) | {"gain": one.gain} for one in choices]
    if config.json:
        print_json({"file": str(path), "tiles": data})
        return
    rows = [
        (
            f"{one['kernel']} {one['num_out']} x {one['size']}",
            " ".join(map(str, one["config"])),
            f"{1e6 * one['seconds']:.1f}",
            f"{1e6 * one['builtin_s']:.1f}",
            f"{100 * one['gain']:+.1f} %",
        )
        for one in data
    ]
    print_table(("matrix", "rows block warps stages splits", "us", "us built in", "gain"), rows)
    print(f"kept in {path}; engines on this GPU read it at start")
