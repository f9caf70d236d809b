"""A hook of mkdocs that lets doxygen build the API reference into the site, below api/. Without doxygen, api/index.html
names the headers, so that links to the reference have a target. A mistake in the reference ends the build."""

import pathlib
import shutil
import subprocess

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

FOLDER = pathlib.Path(__file__).resolve().parent
INSTEAD = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>numacre API</title></head>
<body><p>The API reference was not built, for doxygen is not installed. The headers have the same text:
<code>numacre/numacre.h</code>, <code>numacre/inline.h</code> and <code>numacre/numacre.hpp</code>.</p></body>
</html>
"""


def on_files(files, config):
    files.append(File.generated(config, "api/index.html", content=INSTEAD))
    return files


def on_post_build(config):
    if shutil.which("doxygen") is None:
        return
    options = f"@INCLUDE = Doxyfile\nOUTPUT_DIRECTORY = {pathlib.Path(config.site_dir).resolve()}\n"
    done = subprocess.run(
        ["doxygen", "-"], input=options, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        raise PluginError(f"doxygen:\n{done.stdout}")
