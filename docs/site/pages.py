"""MkDocs hooks: documents of the source become pages, and pages with diagrams load the script that draws them.

A link in the repository names a file of the repository. Documents outside `docs/` are pages below `source/`, so links
between all documents are rewritten to where their targets are in the site. A link to anything else in the repository
becomes plain text, because the site does not contain it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("raftlog", "metadata", "partitions", "http_api", "spark_source", "jepsen_like", "tests", "benchmarks")
LINK = re.compile(
    r"(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])"
    r"\((?!https?:|mailto:|#)(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
)
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
SCRIPT = "site/vendor/mermaid.tiny.js"  # copied as it is, from docs/


def source_documents() -> list[str]:
    """Return the documents outside `docs/` that become pages, by their paths in the repository."""
    found = ["ARCHITECTURE.md", "CHANGELOG.md"]
    for folder in FOLDERS:
        found += [str(path.relative_to(ROOT)) for path in sorted((ROOT / folder).rglob("*.md"))]
    return found


def site_path(document: str) -> str:
    """Return the path of a document of the repository in the site's sources."""
    if document in ("README.md", "docs/README.md"):
        return "index.md"
    return document.removeprefix("docs/") if document.startswith("docs/") else f"source/{document}"


def rewritten(markdown: str, document: str, known: set[str]) -> str:
    """Return the text of a document with its links pointing to pages of the site."""

    def replace(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(document), match["target"]))
        if target in ("README.md", "docs/README.md") or target in known or target.startswith("docs/"):
            there = posixpath.relpath(site_path(target), posixpath.dirname(site_path(document)))
            return f"{match['text']}({there}{match['anchor'] or ''})"
        return match["text"][1:-1]

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(replace, part) for part in parts)


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the documents of the source."""
    for document in source_documents():
        files.append(File.generated(config, site_path(document), content=(ROOT / document).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite the links of one page. The HTTP reference loses its second title, which hides the table of contents."""
    path = page.file.src_uri
    if path == "http-reference.md":
        markdown = re.sub(r"^# raftlog.*\n", "", markdown, flags=re.MULTILINE)
    document = path.removeprefix("source/") if path.startswith("source/") else f"docs/{path}"
    return rewritten(markdown, document, set(source_documents()))


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Load Mermaid where a page has a diagram, before the theme's own script would get it from another host."""
    if 'class="mermaid"' not in output:
        return output
    root = posixpath.relpath(".", posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace("</head>", f'<script src="{root}/{SCRIPT}"></script></head>', 1)
