"""The launcher's files are in a volume that the kubelet rewrites when the cluster map changes."""

import subprocess
import sys
from pathlib import Path

from pstraining.launcher import launcher_files

SCRIPT = """
import os, runpy, shutil, sys
folder = {folder!r}
sys.path.insert(0, folder + "/..one")  # where the interpreter finds a script whose path is a link
shutil.copytree(folder + "/..one", folder + "/..two")
os.symlink("..two", folder + "/..tmp")
os.rename(folder + "/..tmp", folder + "/..data")
shutil.rmtree(folder + "/..one")
print(runpy.run_path(folder + "/launch.py", run_name="launch")["terms"].__file__)
"""


def test_the_launcher_finds_its_files_while_the_volume_changes(tmp_path: Path) -> None:
    version = tmp_path / "..one"
    version.mkdir()
    (tmp_path / "..data").symlink_to("..one")
    for name, text in launcher_files().items():
        (version / name).write_text(text)
        (tmp_path / name).symlink_to(f"..data/{name}")
    script = SCRIPT.format(folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == tmp_path / "terms.py"
