"""Makes a copy of the product with its own interpreter, so that mutants never touch the working tree."""

import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def make_copy(folder: Path) -> Path:
    """Copies the files that git tracks or would add, and returns the copy's interpreter.

    Agents under test are processes that get no PYTHONPATH. So the interpreter itself has to find `holdfast` in the copy;
    otherwise they would run the unchanged product and every mutant of the agent would survive.
    """
    folder.mkdir(parents=True, mode=0o755)
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder / ".venv"), "platbase": str(folder / ".venv")}))
    # the copy comes first; the editable install of the working tree is not read
    paths = [str(folder / "src"), *site.getsitepackages()]
    (packages / "copy.pth").write_text("\n".join(paths) + "\n")
    return folder / ".venv" / "bin" / "python"
