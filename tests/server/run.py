"""`penstock serve` over the oracle that prompts can upset: `python -m tests.server.run FLAGS`."""

import sys

from penstock.assembly.serving import serve
from penstock.assembly.text import open_text
from penstock.cli.serve import Config, with_key_of_environment
from penstock.console import args

if __name__ == "__main__":
    config = args.build(Config, args.parse(Config, sys.argv[1:]).values)
    worker = [sys.executable, "-m", "tests.engine.poisoned"]
    sys.exit(
        serve(
            config.engine, with_key_of_environment(config.server), worker, lambda: open_text(config.engine.model.model)
        )
    )
