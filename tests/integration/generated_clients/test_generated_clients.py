"""Clients that are generated from a node's OpenAPI document, compiled with strict types and run against the node.

They fetch their generators from npm's and Go's registries, so they run with `-m soak`, where these tools are installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clusters.cluster import running_cluster
from tests.support.http.openapi30 import as_openapi30

pytestmark = [pytest.mark.integration, pytest.mark.soak]

SOURCES = Path(__file__).parent
SECONDS = 600
GO_GENERATOR = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.5.0"
TOLD = {"partitions": 2, "produced": 2, "keys": ["a", "b"], "committed": 204, "problem": "unknown_topic"}


@pytest.fixture
def api() -> Iterator[str]:
    with running_cluster(1) as cluster:
        yield f"http://{cluster.nodes[0].api}"


def document_of(api: str) -> bytes:
    with urllib.request.urlopen(f"{api}/openapi.json", timeout=10) as answer:
        found: bytes = answer.read()
        return found


def run(folder: Path, *command: str) -> str:
    told = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    assert told.returncode == 0, f"{command}\n{told.stdout[-3000:]}\n{told.stderr[-3000:]}"
    return told.stdout


def answer_of(text: str) -> Any:
    return json.loads(text.strip().splitlines()[-1])


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_typescript(api: str, tmp_path: Path) -> None:
    for name in ("client.ts", "package.json", "tsconfig.json"):
        shutil.copy(SOURCES / name, tmp_path)
    (tmp_path / "openapi.json").write_bytes(document_of(api))
    run(tmp_path, "npm", "install", "--no-audit", "--no-fund")
    run(tmp_path, "npx", "openapi-typescript", "openapi.json", "--default-non-nullable", "false", "-o", "api.d.ts")
    run(tmp_path, "npx", "tsc", "-p", ".")
    assert answer_of(run(tmp_path, "node", "out/client.js", api)) == TOLD


@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
def test_go(api: str, tmp_path: Path) -> None:
    for name in ("main.go", "go.mod", "go.sum"):
        shutil.copy(SOURCES / name, tmp_path)
    (tmp_path / "openapi.json").write_bytes(as_openapi30(document_of(api)))
    run(
        tmp_path,
        "go",
        "run",
        GO_GENERATOR,
        "-generate",
        "types,client",
        "-package",
        "main",
        "-o",
        "api.gen.go",
        "openapi.json",
    )
    run(tmp_path, "go", "build", "-mod=mod", "-o", "client", ".")
    assert answer_of(run(tmp_path, "./client", api)) == TOLD
