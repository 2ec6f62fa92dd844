"""Makes the peers' environments: `python -m experiments.speed.peers DIR`."""

import argparse
import subprocess
import sys
from pathlib import Path

from experiments.speed.peers import HERE, MODULES, NAMES

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=Path, help="gets an environment for each peer")
OWN = [name for name in NAMES if name not in MODULES]
parser.add_argument("--only", choices=OWN, nargs="+", default=OWN)
options = parser.parse_args()
for name in options.only:
    place = options.folder / name
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    requirements = HERE / f"{name}.txt"
    subprocess.run([str(place / "bin" / "pip"), "install", "--quiet", "-r", str(requirements)], check=True)
    print(f"{name}: {place}")
