"""What mkdocs is told while it builds the site: which pages are made, and where links out of the pages lead.

The pages of the methods are made from the registry, those of the results from `experiments/`. Pages are written so that
their links work in a code browser too: a link to `jaxfl/methods/stocfl/__init__.py` leads to the method's page on the
site.
"""

import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "pages"
sys.path.insert(0, str(ROOT))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from mkdocs.structure.files import File, Files  # noqa: E402, the path and the platform come first

from docs.generate import methods, results, tables  # noqa: E402, the path and the platform come first
from jaxfl.methods import METHODS  # noqa: E402, the path and the platform come first

log = logging.getLogger("mkdocs.hooks.jaxfl")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)]*)?\)")
# Pages that are files of the repository as they are.
TAKEN = {
    "docs/CONTRIBUTING.md": "contributing.md",
    "experiments/leaderboard/results/README.md": "leaderboard/cells.md",
    "experiments/speed/README.md": "speed/measured.md",
    "experiments/speed/results/README.md": "speed/accelerators.md",
}


def on_config(config: Any) -> Any:
    """Puts the made pages into the navigation, at the places that `mkdocs.yml` leaves for them."""
    made = {
        "Methods": ["methods/index.md", *({name: f"methods/{name}.md"} for name in METHODS)],
        "Results": ["results.md", *({_title(results.readme(name)): _of(name)} for name in results.experiments())],
    }
    config.nav = [{title: made.get(title, pages)} for entry in config.nav for title, pages in entry.items()]
    return config


def _of(name: str) -> list[Any]:
    """Returns the pages of an experiment."""
    scales = [{f"{scale.capitalize()} scale": f"results/{name}-{scale}.md"} for scale in results.scales(name)]
    return [{"The experiment": f"results/{name}.md"}, *scales]


def on_files(files: Files, config: Any) -> Files:
    """Adds the made pages and the pictures of the reports."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)  # what is measured is counted, not timed
    made = {"methods/index.md": methods.overview()}
    made |= {f"methods/{name}.md": methods.page(name, row, methods.measure(row)) for name, row in METHODS.items()}
    made |= {f"results/{name}.md": results.readme(name) for name in results.experiments()}
    made |= {page: (ROOT / path).read_text(encoding="utf-8") for path, page in TAKEN.items()}
    for report in results.reports():
        made[f"results/{report.experiment}-{report.scale}.md"] = report.text
        for place, path in report.pictures.items():
            files.append(File.generated(config, f"results/{place}", abs_src_path=str(path)))
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Refuses a table that is not what the results say, and turns links out of the pages."""
    if tables.renewed(markdown) != markdown:
        log.warning("%s: a table is out of date; run `python -m docs.generate`", page.file.src_uri)
    here = PAGES / page.file.src_uri

    def turned(found: re.Match) -> str:
        text, link, anchor = found[1], found[2], found[3] or ""
        target = Path(os.path.normpath(here.parent / link))
        if target.is_relative_to(PAGES):
            return found[0]
        if not target.exists():
            log.warning("%s: %s does not exist", page.file.src_uri, link)
        place = place_of(target.relative_to(ROOT).as_posix())
        if place is None:
            return text if text.startswith("`") else f"{text} (`{target.relative_to(ROOT).as_posix()}`)"
        return f"[{text}]({os.path.relpath(place, Path(page.file.src_uri).parent)}{anchor})"

    return LINK.sub(turned, markdown)


def place_of(path: str) -> str | None:
    """Returns the page that a file of the repository has, None if it has none."""
    own = {methods.source(row): f"methods/{name}.md" for name, row in reversed(METHODS.items())}
    own |= {f"experiments/{name}/README.md": f"results/{name}.md" for name in results.experiments()}
    for name in results.experiments():
        for scale in results.scales(name):
            own[f"experiments/{name}/results/{scale}/report/report.md"] = f"results/{name}-{scale}.md"
    return ({"jaxfl/methods/__init__.py": "methods/index.md"} | TAKEN | own).get(path)


def _title(text: str) -> str:
    """Returns the heading of a page."""
    return text.partition("\n")[0].removeprefix("# ")
