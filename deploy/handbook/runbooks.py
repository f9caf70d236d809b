"""A hook of mkdocs that makes the runbooks of dashboards/runbooks the pages runbooks/<Alert>.md. Links between runbooks
stay as they are. A runbook that mkdocs.yml does not list in `nav` is a warning, and with `strict` an error."""

import pathlib

from mkdocs.structure.files import File

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "dashboards" / "runbooks"


def on_files(files, config):
    for runbook in sorted(FOLDER.glob("*.md")):
        files.append(File.generated(config, f"runbooks/{runbook.name}", abs_src_path=str(runbook)))
    return files
