"""Makes the runs of the page "What we learned from reproducing three papers": `python -m docs.lessons`, minutes in all.

Each is one `jaxfl sweep` on the digits that come with jaxfl; `jaxfl compare` reads it, and what it says is kept in
`docs/lessons.json`, of which `docs.generate` makes the tables of the page.
"""

import csv
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

FILE = Path(__file__).parent / "lessons.json"
SHARED = "--data rotated-digits --seeds 0-2"
COMMANDS = {
    "chain": f"jaxfl sweep fedavg {SHARED} --rounds 20 --cohort 0.5 --set update=parallel,chain",
    "pulled to a chain": "jaxfl sweep stocfl --data rotated-digits --seeds 0-9 --rounds 20 --cohort 0.5 "
    "--set update=parallel,chain",
    "threshold": f"jaxfl sweep stocfl {SHARED} --rounds 20 --cohort 0.5 --set num_clients=80 --set rows_per_client=16 "
    "--set threshold=0.3,0.5,0.7,auto",
    "absolute": f"jaxfl sweep cfl {SHARED} --rounds 40 --set preset=paper,official",
    "pull": f"jaxfl sweep fesem {SHARED} --rounds 20 --cohort 0.5 --set proximal_weight=0,0.1,1",
    "layers": f"jaxfl sweep layercfl {SHARED} --rounds 40 --set layers=.*,Dense_0/kernel,Dense_1/kernel",
}
COLUMNS = {"micro_accuracy": 100, "num_clusters": 1, "ari": 1}
APART = ("difference mean", "difference std", "difference p")  # from the first row, by seed
SEEDS = 5  # from which on it is shown how far rows are apart


def make(command: str) -> list[dict[str, object]]:
    """Returns what a sweep comes to: a setting a row, with mean and deviation over the seeds."""
    with tempfile.TemporaryDirectory() as folder:
        out, table = Path(folder) / "runs", Path(folder) / "table.csv"
        for words in ([*shlex.split(command)[1:], "--out", str(out)], ["compare", str(out), "--csv", str(table)]):
            subprocess.run([sys.executable, "-m", "jaxfl.cli", *words], check=True, stdout=subprocess.DEVNULL)
        with table.open(newline="") as file:
            return [
                {"setting": row["setting"], "seeds": int(row["seeds"])}
                | {
                    f"{name} {kind}": round(factor * float(row[f"{name} {kind}"] or 0), 4)
                    for name, factor in COLUMNS.items()
                    for kind in ("mean", "std")
                }
                | {name: float(row[name]) for name in APART if row[name]}
                for row in csv.DictReader(file)
            ]


def table(name: str) -> str:
    """Returns the table of a lesson, and the command that makes it."""
    rows = json.loads(FILE.read_text(encoding="utf-8"))[name]
    head, enough = ["setting", "accuracy, %", "clusters", "ARI"], rows[0]["seeds"] >= SEEDS
    head += ["from the first row, by seed", "p"] if enough else []
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        accuracy = f"{row['micro_accuracy mean']:.2f} ± {row['micro_accuracy std']:.2f}"
        cells = [row["setting"], accuracy, f"{row['num_clusters mean']:.1f}", f"{row['ari mean']:.2f}"]
        if enough:
            mean, std, p = (row.get(name) for name in APART)
            cells += ["", ""] if mean is None else [f"{100 * mean:+.2f} ± {100 * std:.2f}", f"{p:.2g}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(["```text", f"{COMMANDS[name]} --out runs/{name.split()[0]}", "```", "", *lines])


if __name__ == "__main__":
    made = {}
    for lesson in COMMANDS:
        made[lesson] = make(COMMANDS[lesson])
        print(lesson, *made[lesson], sep="\n  ", flush=True)
    FILE.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
