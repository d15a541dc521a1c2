"""Install seqpipe into `.venv` and train a first model: `python3 try.py`; or run the tests: `python3 try.py tests`.

A second call installs nothing again. What follows `tests` is handed to pytest.
"""

import importlib.util
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))
ENVIRONMENT = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(ENVIRONMENT, *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))


def run(*command):
    """Run a command as if the environment were active; exit with its code if it fails."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
    variables["PATH"] = os.pathsep.join([os.path.dirname(PYTHON), os.environ.get("PATH", "")])
    code = subprocess.call(command, cwd=ROOT, env=dict(variables, VIRTUAL_ENV=ENVIRONMENT))
    if code:
        sys.exit(code)


def install(extras, packages):
    """Make the environment and install the project with its extras, unless that was done with these requirements."""
    requirements = ROOT  # which an editable installation holds too
    for name in ("pyproject.toml", "constraints.txt"):
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            requirements += file.read()
    stamp = os.path.join(ENVIRONMENT, f"installed-{extras}")
    if os.path.exists(PYTHON) and os.path.exists(stamp):
        with open(stamp, encoding="utf-8") as file:
            if file.read() == requirements:
                return
        os.remove(stamp)
    if importlib.util.find_spec("ensurepip") is None:
        sys.exit("This Python cannot make virtual environments: apt install python3-venv, or use another Python.")
    size = "1.7 GB; on Linux 5.5 GB, with CUDA, unless PyTorch is there"
    print(f"Installing about {packages} packages into .venv ({size}); this takes some minutes.", flush=True)
    print("If it fails: delete the folder .venv, and start try.py again.", flush=True)
    run(sys.executable, "-m", "venv", ENVIRONMENT)
    run(PYTHON, "-m", "pip", "install", "-q", "-c", "constraints.txt", "-e", f".[{extras}]")
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(requirements)


def main(arguments):
    if sys.version_info < (3, 11):
        version = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"seqpipe needs Python 3.11 or newer, and this is {version}: start try.py with a newer one.")
    if arguments[:1] == ["tests"]:
        install("test", 105)
        run(PYTHON, "-m", "pytest", *arguments[1:])
    elif arguments:
        sys.exit("usage: python3 try.py, or python3 try.py tests [OPTIONS OF PYTEST]")
    else:
        install("train,cpu,report,serve", 75)
        run(PYTHON, "-m", "seqpipe", "run", "pipelines/ner.yaml")
        activate = ".venv\\Scripts\\activate" if os.name == "nt" else ". .venv/bin/activate"
        print(f"\nTry the model in a browser:\n    cd {ROOT}\n    {activate}\n    seqpipe serve runs/ner/bundle")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
