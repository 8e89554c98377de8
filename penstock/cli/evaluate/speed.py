"""W1 to W3 and peak memory of one model, in a process of its own: `eval report` starts it for each.

python -m penstock.cli.evaluate.speed MODEL
"""

import sys

from penstock.console.show import print_json
from penstock.offline.speed import measure_speed

REPEATS = 3


def main() -> None:
    print_json(measure_speed(sys.argv[1], REPEATS))


if __name__ == "__main__":
    main()
